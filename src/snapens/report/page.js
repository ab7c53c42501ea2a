"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const cards = [...document.querySelectorAll("[data-example]")];
  const points = [...document.querySelectorAll("[data-m]")];
  const rings = [...document.querySelectorAll("[data-exit]")];

  const showExample = (card, members, column) => {
    const example = data.examples[Number(card.dataset.example)];
    const used = Math.min(members, example.evaluated[column]);
    const [name, probability, right] = example.means[used - 1];
    card.querySelector("[data-used]").textContent = used;
    card.querySelector("[data-mean]").textContent = name;
    card.querySelector("[data-sure]").textContent = probability;
    card.querySelector("[data-mark]").textContent = right ? "✓ right" : "✗ wrong";
    card.querySelector(".mean").classList.toggle("right", right);
    [...card.querySelectorAll("[data-vote]")].forEach((vote, k) => vote.classList.toggle("skipped", k >= used));
  };

  const show = () => {
    const members = Number(find("m").value), column = Number(find("sure").value);
    const thresholds = find("sure").dataset.thresholds.split(" ");
    const stop = thresholds[column] === "1" ? "never" : thresholds[column];
    find("m-shown").textContent = members;
    find("sure-shown").textContent = stop;
    find("sure").setAttribute("aria-valuetext", stop);
    for (const name of ["error", "nll", "used"]) find(name).textContent = data.table[name][members - 1][column];
    const ring = (members - 1) * thresholds.length + column + 1;
    points.forEach((point) => point.classList.toggle("chosen", Number(point.dataset.m) === members));
    rings.forEach((found) => found.classList.toggle("chosen", Number(found.dataset.exit) === ring));
    cards.forEach((card) => showExample(card, members, column));
  };

  if (find("m")) {
    document.documentElement.classList.add("live");
    find("m").addEventListener("input", show);
    find("sure").addEventListener("input", show);
    show();
  }
}
