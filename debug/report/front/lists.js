"use strict";

/** A list with one chosen item, which a search can narrow. Items have `data-text`. */
class ChoiceList {
  /** @param onChoose is called with the index of the item among all items */
  constructor(element, onChoose) {
    this.element = element;
    this.items = [...element.querySelectorAll("[role=option]")];
    this.texts = this.items.map((item) => item.dataset.text.toLowerCase());
    this.onChoose = onChoose;
    this.chosen = -1;
    this.showsBookkeeping = false;
    element.addEventListener("click", (event) => {
      const item = event.target.closest("[role=option]");
      if (item) this.choose(this.items.indexOf(item));
    });
  }

  choose(index) {
    if (!this.items[index] || index === this.chosen) return;
    this.items[this.chosen]?.setAttribute("aria-selected", "false");
    this.chosen = index;
    this.items[index].hidden = false;
    this.items[index].setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", this.items[index].id);
    this.items[index].scrollIntoView({ block: "nearest" });
    this.onChoose(index);
  }

  /** Chooses the next visible item, or with -1 the one before. */
  move(by) {
    let index = this.chosen + by;
    while (this.items[index]?.hidden) index += by;
    this.choose(index);
  }

  first() {
    this.choose(this.items.findIndex((item) => !item.hidden));
  }

  last() {
    this.choose(this.items.findLastIndex((item) => !item.hidden));
  }

  /** Hides the items that lack one of these words, and without words those of bookkeeping; returns
   * the number of the others. */
  filter(words) {
    let count = 0;
    this.items.forEach((item, index) => {
      const left = !this.showsBookkeeping && !words.length && index !== this.chosen;
      const isFound = words.every((word) => this.texts[index].includes(word));
      item.hidden = !isFound || (left && "bookkeeping" in item.dataset);
      if (!item.hidden) count += 1;
    });
    return count;
  }
}

/** Makes a click on the head of a column sort the rows of a table. */
function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (body) => body.rows[0].cells[column].dataset.value;
      const sorted = [...table.tBodies].sort((a, b) => compareTexts(key(a), key(b)));
      if (down) sorted.reverse();
      table.append(...sorted);
    });
  });
}

function compareTexts(a, b) {
  const difference = Number(a) - Number(b);
  return Number.isNaN(difference) ? a.localeCompare(b) : difference;
}
