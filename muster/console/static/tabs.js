// Tabs: one panel at a time; arrow keys go from tab to tab.
"use strict";

(() => {
  /** Show the panel of a tab, and tell others of it. */
  muster.tab = (name) => {
    for (const each of document.querySelectorAll('[role="tab"]')) {
      const isIt = each.dataset.tab === name;
      each.setAttribute("aria-selected", String(isIt));
      each.tabIndex = isIt ? 0 : -1;
      muster.by(each.getAttribute("aria-controls")).hidden = !isIt;
    }
    document.dispatchEvent(new CustomEvent("muster-tab", { detail: name }));
  };

  muster.startTabs = () => {
    const all = [...document.querySelectorAll('[role="tab"]')];
    all.forEach((each, place) => {
      each.addEventListener("click", () => muster.tab(each.dataset.tab));
      each.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = all[(place + step + all.length) % all.length];
        muster.tab(next.dataset.tab);
        next.focus();
      });
    });
  };
})();
