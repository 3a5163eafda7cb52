// SPDX-License-Identifier: Apache-2.0

// The pages that have all the words, those with a word in their title first, with what stands around the first one.
// pages.js, which the site's generator writes, has the pages; it is loaded before, so that the site works from files, too.
"use strict";
(() => {
  const field = document.getElementById("search"), list = document.getElementById("found");
  const top = document.currentScript.src.replace(/search\.js$/, "");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = !words.length ? [] : pages.map(page => {
      const title = page.title.toLowerCase(), text = page.text.toLowerCase();
      if (!words.every(word => title.includes(word) || text.includes(word))) return null;
      const times = words.reduce((sum, word) => sum + text.split(word).length - 1, 0);
      return {page, score: times + 1000 * words.filter(word => title.includes(word)).length, at: text.indexOf(words[0])};
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
