// SPDX-License-Identifier: Apache-2.0
"use strict";

// Search: the pages that have all the words, at the beginning of a word. Titles count most, then phrases, then guides. pages.js, which the site's generator
// writes, has the pages; it is loaded before, so that the site works from files, too.
(() => {
  const field = document.getElementById("search"), list = document.getElementById("found");
  const top = document.currentScript.src.replace(/site\.js$/, "");
  const common = new Set("a an and are as at be by for from i in is it its my of on or the to what with".split(" "));
  const begins = (text, word) => {
    const places = [];
    for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1))
      if (at === 0 || !/[a-z0-9]/.test(text[at - 1])) places.push(at);
    return places;
  };
  field.addEventListener("input", () => {
    const typed = field.value.toLowerCase().trim(), all = typed.split(/\s+/).filter(Boolean);
    const few = all.filter(word => !common.has(word)), words = few.length ? few : all;
    const hits = !words.length ? [] : pages.map(page => {
      const title = page.title.toLowerCase(), text = page.text.toLowerCase();
      const found = words.map(word => begins(text, word)), titled = words.filter(word => begins(title, word).length).length;
      if (!words.every((word, i) => found[i].length || begins(title, word).length)) return null;
      const phrase = all.length > 1 ? begins(text, typed) : [];
      const at = phrase[0] ?? found.find(places => places.length)?.[0] ?? -1;
      const count = found.reduce((sum, places) => sum + places.length, 0);
      const score = (titled === words.length ? 5000 : 50 * titled) + 100 * Math.min(phrase.length, 5) + (page.at.startsWith("use/") ? 250 : 0) + Math.min(count, 99);
      return {page, at, score};
    }).filter(Boolean).sort((a, b) => b.score - a.score).slice(0, 8);
    list.replaceChildren(...hits.map(({page, at}) => {
      const item = document.createElement("li"), link = document.createElement("a"), around = document.createElement("small");
      link.href = top + page.at;
      link.textContent = page.title;
      around.textContent = at < 0 ? "" : "… " + page.text.slice(Math.max(0, at - 40), at + 80) + " …";
      item.append(link, around);
      return item;
    }));
    if (words.length && !hits.length) {
      const item = document.createElement("li");
      item.textContent = "No page has all of these words.";
      list.append(item);
    }
  });
})();

// Copy buttons: of a console the commands without their prompts, of other code all.
for (const pre of document.querySelectorAll("pre")) {
  const code = pre.querySelector("code"), button = document.createElement("button");
  if (!code || !navigator.clipboard) continue;
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const lines = code.textContent.split("\n"), typed = lines.filter(line => line.startsWith("$ ")).map(line => line.slice(2));
    await navigator.clipboard.writeText(typed.length ? typed.join("\n") : code.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  const block = document.createElement("div");
  block.className = "code";
  pre.replaceWith(block);
  block.append(pre, button);
}
