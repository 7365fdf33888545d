const config = { responsive: true, displaylogo: false, showSendToCloud: false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] };
function draw(figure) {
  const css = getComputedStyle(document.documentElement);
  const off = [...figure.closest("section").querySelectorAll("[aria-pressed=false]")].map((b) => Number(b.dataset.method));
  const colour = (_, name, alpha) => `"${css.getPropertyValue("--" + name).trim()}${alpha || ""}"`;
  const spec = JSON.parse(figure.querySelector("script").textContent.replace(/"css:(\w+)(?:\/(\w\w))?"/g, colour));
  for (const trace of spec.data) trace.visible = !off.includes(trace.meta);
  return Plotly.react(figure.querySelector(".plot"), spec.data, spec.layout, config);
}
async function drawAll(root) {
  for (const plot of root.querySelectorAll(".plot")) {
    const figure = plot.parentElement;
    try { await draw(figure); figure.dataset.state = "drawn"; }
    catch (error) { figure.dataset.state = "failed"; plot.textContent = "This plot could not be drawn: " + error; }
  }
}
for (const button of document.querySelectorAll("[aria-pressed]")) button.addEventListener("click", () => {
  button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") === "false");
  drawAll(button.closest("section"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
drawAll(document);
