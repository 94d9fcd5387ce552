"use strict";
// Shows what a chart says at the step nearest to the pointer, the finger or the arrow keys.
for (const figure of document.querySelectorAll("figure[data-hover]")) {
  const { x, says, top, bottom } = JSON.parse(figure.dataset.hover);
  const svg = figure.querySelector("svg");
  const words = figure.querySelector("output");
  const atRest = words.textContent;
  const cursor = document.createElementNS(svg.namespaceURI, "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", top);
  cursor.setAttribute("y2", bottom);
  let at = x.length - 1;

  const show = (i) => {
    at = Math.min(Math.max(i, 0), x.length - 1);
    cursor.setAttribute("x1", x[at]);
    cursor.setAttribute("x2", x[at]);
    svg.append(cursor);
    words.textContent = says[at];
  };
  const rest = () => {
    cursor.remove();
    words.textContent = atRest;
  };
  const follow = (event) => {
    const toDrawing = svg.getScreenCTM().inverse();
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(toDrawing).x;
    let nearest = 0;
    x.forEach((each, i) => {
      if (Math.abs(each - place) < Math.abs(x[nearest] - place)) nearest = i;
    });
    show(nearest);
  };

  svg.addEventListener("pointerdown", follow);
  svg.addEventListener("pointermove", follow);
  svg.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") rest();
  });
  svg.addEventListener("blur", rest);
  svg.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: x.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(next);
  });
  svg.setAttribute("tabindex", "0");
}
