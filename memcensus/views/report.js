// What the report does beyond standing there: zoom, tips, sorting, filtering, light and dark.
// All text goes in by textContent; nothing is ever read as markup. Without this script the page
// shows the same figures.
(() => {
  "use strict";

  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  const CHUNK = 1000; // rows that one frame adds
  const PAGE = 50; // rows that are shown at first, as in html.py

  root.classList.add("script");

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // ---- Tips: one box, filled from the data, beside the pointer or the focused element.

  function showTip(title, facts, x, y) {
    const list = make("dl");
    for (const [name, value] of facts) list.append(make("dt", "", name), make("dd", "", value));
    tip.replaceChildren(make("strong", "", title), list);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = x + 16 + width > innerWidth - 8 ? x - 16 - width : x + 16;
    const below = y + 16 + height > innerHeight - 8 ? y - 16 - height : y + 16;
    tip.style.left = `${Math.max(8, Math.min(right, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(below, innerHeight - height - 8))}px`;
  }

  function hideTip() {
    tip.hidden = true;
  }

  function tellPart(element, x, y) {
    const report = data[element.closest("[data-report]").dataset.report];
    const [name, facts] = report.parts[element.dataset.part];
    showTip(name || "(no name)", facts, x, y);
  }

  function placeOf(element) {
    const box = element.getBoundingClientRect();
    return [box.left + Math.min(box.width / 2, 120), box.top + Math.min(box.height, 24)];
  }

  function onTips(area, tell) {
    area.addEventListener("pointermove", (event) => {
      const element = event.target.closest("[data-part], [data-row]");
      if (element && area.contains(element)) tell(element, event.clientX, event.clientY);
      else hideTip();
    });
    area.addEventListener("pointerleave", hideTip);
    area.addEventListener("focusin", (event) => {
      const element = event.target.closest("[data-part], [data-row]");
      if (element && event.target.matches(":focus-visible")) tell(element, ...placeOf(element));
    });
    area.addEventListener("focusout", hideTip);
  }

  addEventListener("scroll", hideTip, { passive: true, capture: true });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
  });

  // ---- Light and dark. Nothing is stored: a report leaves no trace in the browser.

  document.querySelector(".theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  // ---- Several reports: the address says which one is shown.

  const articles = [...document.querySelectorAll("[data-report]")];
  const links = [...document.querySelectorAll(".reports a")];

  function showReport() {
    const wanted = Math.max(0, articles.findIndex((article) => `#${article.id}` === location.hash));
    articles.forEach((article, at) => article.classList.toggle("current", at === wanted));
    links.forEach((link, at) => {
      if (at === wanted) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    hideTip();
  }

  addEventListener("hashchange", () => {
    showReport();
    scrollTo(0, 0);
  });
  showReport();

  // ---- One stop of the Tab key for many elements; arrow keys move inside.

  function focusOne(elements, element, options) {
    for (const other of elements) if (other.tabIndex === 0) other.tabIndex = -1;
    element.tabIndex = 0;
    element.focus(options);
  }

  // ---- The map.

  function childTiles(tile) {
    return [...tile.querySelectorAll(":scope > .inside > .tile")];
  }

  function parentTile(tile) {
    return tile.parentElement.closest(".tile");
  }

  const STAY = { preventScroll: true }; // the map is in sight already

  function setUpMap(map) {
    const stage = map.querySelector(".stage");
    const crumbs = map.querySelector(".crumbs");
    const top = stage.querySelector(".tile");
    const tiles = [...stage.querySelectorAll(".tile")];
    let zoomed = top;

    stage.setAttribute("role", "tree");
    stage.setAttribute("aria-label", "map of the accounts; area is bytes");
    for (const tile of tiles) {
      tile.setAttribute("aria-label", tile.title);
      tile.removeAttribute("title");
      tile.setAttribute("role", "treeitem");
      tile.tabIndex = -1;
      const inside = tile.querySelector(":scope > .inside");
      if (inside) inside.setAttribute("role", "group");
    }
    top.tabIndex = 0;

    function nameOf(tile) {
      return tile.querySelector(".label .name").textContent;
    }

    function zoom(tile) {
      for (const other of stage.querySelectorAll(".zoomed, .around")) other.classList.remove("zoomed", "around");
      const way = [];
      for (let at = tile; at; at = parentTile(at)) way.unshift(at);
      for (const around of way.slice(0, -1)) around.classList.add("around");
      if (tile !== top) tile.classList.add("zoomed");
      zoomed = tile;
      crumbs.replaceChildren();
      for (const step of way) {
        if (step !== way[0]) crumbs.append(make("span", "dim", "\u203a"));
        const last = step === tile;
        const crumb = make(last ? "span" : "button", "name", nameOf(step));
        if (last) crumb.setAttribute("aria-current", "location");
        else {
          crumb.type = "button";
          crumb.addEventListener("click", () => {
            zoom(step);
            focusOne(tiles, step, STAY);
            hideTip();
          });
        }
        crumbs.append(crumb);
      }
      hideTip();
    }

    // One level at a time: the part of what is shown now that holds the tile under the pointer.
    stage.addEventListener("click", (event) => {
      let tile = event.target.closest(".tile");
      while (tile && tile !== zoomed && parentTile(tile) !== zoomed) tile = parentTile(tile);
      if (!tile) return;
      if (tile !== zoomed && tile.classList.contains("group")) zoom(tile);
      focusOne(tiles, tile, STAY);
    });

    function move(key, tile) {
      const around = tile === zoomed ? [tile] : childTiles(parentTile(tile));
      const at = around.indexOf(tile);
      if (key === "ArrowRight") return around[Math.min(at + 1, around.length - 1)];
      if (key === "ArrowLeft") return around[Math.max(at - 1, 0)];
      if (key === "ArrowDown") return childTiles(tile)[0] || tile;
      if (key === "ArrowUp") return tile === zoomed ? tile : parentTile(tile);
      if (key === "Home") return zoomed;
      return null;
    }

    stage.addEventListener("keydown", (event) => {
      const tile = event.target.closest(".tile");
      if (!tile) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        const goal = tile.classList.contains("group") ? tile : parentTile(tile);
        if (goal) zoom(goal);
        focusOne(tiles, goal || tile, STAY);
        return;
      }
      if (event.key === "Escape" || event.key === "Backspace") {
        event.preventDefault();
        if (zoomed === top) return;
        const inner = zoomed;
        zoom(parentTile(zoomed));
        focusOne(tiles, inner, STAY);
        return;
      }
      const goal = move(event.key, tile);
      if (goal) {
        event.preventDefault();
        focusOne(tiles, goal, STAY);
      }
    });

    onTips(stage, tellPart);
  }

  // ---- The tree of accounts.

  function setUpTree(tree) {
    const table = tree.querySelector("table");
    const rows = [...table.tBodies[0].rows];
    const level = (row) => Number(row.dataset.level);
    table.setAttribute("role", "treegrid");
    table.setAttribute("aria-label", "accounts");

    function setOpen(row, open) {
      if (row.hasAttribute("aria-expanded")) row.setAttribute("aria-expanded", String(open));
    }

    // A row is shown when all rows above it in the tree are open.
    function refresh() {
      let closed = Infinity; // level of the closed row that hides what follows
      for (const row of rows) {
        if (level(row) <= closed) closed = Infinity;
        row.hidden = closed !== Infinity;
        if (closed === Infinity && row.getAttribute("aria-expanded") === "false") closed = level(row);
      }
    }

    rows.forEach((row, at) => {
      row.tabIndex = at ? -1 : 0;
      row.setAttribute("aria-level", String(level(row) + 1));
      const next = rows[at + 1];
      if (!next || level(next) <= level(row)) return;
      row.setAttribute("aria-expanded", String(level(row) < 1));
      const button = make("button");
      button.type = "button";
      button.tabIndex = -1;
      button.setAttribute("aria-label", "open or close");
      row.querySelector(".twig").append(button);
    });
    // A small tree is shown whole; of a large one, the first level.
    if (rows.length <= 40) rows.forEach((row) => setOpen(row, true));
    refresh();

    tree.addEventListener("click", (event) => {
      const all = event.target.closest("[data-do]");
      if (all) rows.forEach((row) => setOpen(row, all.dataset.do === "open" || level(row) < 1));
      const row = event.target.closest("tr[aria-expanded]");
      if (row && (event.target.closest(".twig") || event.target.closest(".account"))) {
        setOpen(row, row.getAttribute("aria-expanded") === "false");
      }
      refresh();
    });

    table.addEventListener("keydown", (event) => {
      const row = event.target.closest("tbody tr");
      if (!row) return;
      const seen = rows.filter((other) => !other.hidden);
      const at = seen.indexOf(row);
      const open = row.getAttribute("aria-expanded");
      let goal = null;
      if (event.key === "ArrowDown") goal = seen[at + 1];
      else if (event.key === "ArrowUp") goal = seen[at - 1];
      else if (event.key === "ArrowRight" && open === "true") goal = seen[at + 1];
      else if (event.key === "ArrowLeft" && open !== "true") {
        goal = seen.slice(0, at).reverse().find((other) => level(other) < level(row));
      } else if (["ArrowRight", "ArrowLeft", "Enter", " "].includes(event.key)) {
        setOpen(row, open === "false");
        refresh();
      } else return;
      event.preventDefault();
      if (goal) focusOne(rows, goal);
    });

    onTips(table.tBodies[0], tellPart);
  }

  // ---- Tables: sorting, filtering, and more rows than fit.

  const wordsOf = (cell) => (cell === null ? "?" : typeof cell === "string" ? cell : cell[1]);
  const keyOf = (cell) => (Array.isArray(cell) ? Number(cell[0]) : cell);

  // Unknown last whichever way; numbers before words.
  function compare(a, b, sign) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    if (typeof a === "number") return sign * (a - b);
    return sign * (a < b ? -1 : a > b ? 1 : 0);
  }

  function setUpTable(section, table) {
    const body = section.querySelector("tbody");
    const heads = [...section.querySelectorAll("th")];
    const box = section.querySelector("input");
    const count = section.querySelector(".count");
    let more = section.querySelector(".more");
    let order = table.rows.map((_, at) => at);
    let sorted = null; // [column, 1 or -1]
    let shown = Math.min(PAGE, order.length);
    let turn = 0; // so that a newer order stops the filling by an older one
    const source = (at) => table.sources[table.from[at]];
    const texts = new Map(); // what the filter looks into, made when first needed

    if (!more) {
      more = make("p", "more");
      section.append(more);
    }

    function textOf(at) {
      if (!texts.has(at)) {
        const words = [...table.rows[at].map(wordsOf), ...source(at).map(([, value]) => value)];
        texts.set(at, words.join("\n").toLowerCase());
      }
      return texts.get(at);
    }

    function rowOf(at) {
      const row = make("tr");
      row.dataset.row = at;
      row.tabIndex = -1;
      table.rows[at].forEach((cell, column) => {
        const look = `${table.kinds[column]}${cell === null ? " unknown" : ""}`;
        const place = make("td", look);
        place.append(make("div", "text", wordsOf(cell)));
        row.append(place);
      });
      const last = make("td", "source");
      const [evidence, where] = source(at);
      last.append(make("span", `badge e-${evidence[0]}`, evidence[0]), " ", make("span", "where", where[1]));
      row.append(last);
      row.setAttribute("role", "row"); // said aloud, as a long table's rows are drawn as boxes
      for (const cell of row.cells) cell.setAttribute("role", "cell");
      return row;
    }

    function tellMore() {
      more.replaceChildren();
      if (!order.length) more.textContent = table.rows.length ? "No row matches." : "No rows.";
      if (shown >= order.length) return;
      const all = make("button", "script-only", `show all ${order.length.toLocaleString("en-US")}`);
      all.type = "button";
      all.addEventListener("click", () => fill(order.length));
      more.append(make("span", "", `The first ${shown} of ${order.length.toLocaleString("en-US")} rows.`), all);
    }

    // A table measures all its rows whenever one is added. A long one keeps the widths it has, and
    // its rows become boxes of their own, of which a browser lays out those that are seen.
    function setLong(long) {
      const element = body.parentElement;
      const widths = heads.map((head) => `${Math.ceil(head.getBoundingClientRect().width)}px`);
      element.classList.toggle("long", long);
      for (const part of element.querySelectorAll("thead, tbody")) {
        if (long) part.setAttribute("role", "rowgroup");
        else part.removeAttribute("role");
      }
      if (long) element.setAttribute("role", "table");
      else element.removeAttribute("role");
      element.style.setProperty("--columns", long ? widths.join(" ") : "none");
    }

    function fill(most) {
      turn += 1;
      const mine = turn;
      const goal = Math.min(most, order.length);
      const long = goal > CHUNK;
      if (long !== body.parentElement.classList.contains("long")) setLong(long);
      function step() {
        if (mine !== turn) return; // a newer order has begun to fill the table
        const until = Math.min(body.rows.length + CHUNK, goal);
        const some = document.createDocumentFragment();
        for (let at = body.rows.length; at < until; at += 1) some.append(rowOf(order[at]));
        body.append(some);
        shown = body.rows.length;
        if (shown < goal) requestAnimationFrame(step);
        else tellMore();
      }
      step();
    }

    function arrange() {
      const wanted = box.value.toLowerCase();
      order = table.rows.map((_, at) => at).filter((at) => !wanted || textOf(at).includes(wanted));
      if (sorted) {
        const [column, sign] = sorted;
        const key = column < table.kinds.length
          ? (at) => keyOf(table.rows[at][column])
          : (at) => source(at)[1][1];
        order.sort((a, b) => compare(key(a), key(b), sign) || a - b);
      }
      const all = table.rows.length.toLocaleString("en-US");
      count.textContent = wanted ? `${order.length.toLocaleString("en-US")} of ${all} rows` : `${all} row${table.rows.length === 1 ? "" : "s"}`;
      body.replaceChildren();
      shown = 0;
      fill(PAGE);
    }

    heads.forEach((head, column) => {
      const button = make("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const first = table.kinds[column] === "number" ? -1 : 1; // the largest number, the first word
        const sign = sorted && sorted[0] === column ? -sorted[1] : first;
        sorted = [column, sign];
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        arrange();
      });
    });
    box.setAttribute("aria-label", `filter the rows of ${section.querySelector("h3").textContent}`);
    box.addEventListener("input", arrange);
    for (const cell of body.querySelectorAll("td[title]")) cell.removeAttribute("title");
    for (const row of body.rows) row.tabIndex = -1;
    tellMore();

    // The scrolling region takes the Tab key; arrow keys then walk the rows.
    section.querySelector(".scroll").addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || event.target.closest("th")) return;
      const row = event.target.closest("tbody tr");
      const goal = row ? (step > 0 ? row.nextElementSibling : row.previousElementSibling) : body.rows[0];
      event.preventDefault();
      if (goal) goal.focus();
    });

    onTips(body, (row, x, y) => {
      const at = Number(row.dataset.row);
      const facts = [];
      table.rows[at].forEach((cell, column) => {
        if (Array.isArray(cell) && cell.length > 2) facts.push([heads[column].textContent, cell[2]]);
      });
      showTip(row.cells[0].textContent, [...facts, ...source(at)], x, y);
    });
  }

  // ---- The timeline: the pointer or the arrow keys move a line; the tip says what stood there.

  function setUpChart(area, chart) {
    const cursor = area.querySelector(".cursor");
    let at = chart.at;

    function words() {
      const facts = [["all", chart.words[chart.totals[at]]]];
      for (let band = chart.names.length - 1; band >= 0; band -= 1) {
        facts.push([chart.names[band] || "(no name)", chart.words[chart.bands[band][at]]]);
      }
      return facts;
    }

    function stand(x, y) {
      const units = String(chart.x[at] * 10);
      cursor.setAttribute("x1", units);
      cursor.setAttribute("x2", units);
      cursor.setAttribute("visibility", "visible");
      area.setAttribute("aria-valuenow", String(at));
      area.setAttribute("aria-valuetext", `${chart.when[at]}: ${words().map((fact) => fact.join(" ")).join("; ")}`);
      if (x !== undefined) showTip(chart.when[at], words(), x, y);
    }

    function leave() {
      cursor.setAttribute("visibility", "hidden");
      hideTip();
    }

    function atPercent(percent) {
      let low = 0;
      let high = chart.x.length - 1;
      while (low < high) {
        const middle = Math.ceil((low + high) / 2);
        if (chart.x[middle] <= percent) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    function fromKeys() {
      const box = area.getBoundingClientRect();
      stand(box.left + (box.width * chart.x[at]) / 100, box.top + box.height / 4);
    }

    area.tabIndex = 0;
    area.setAttribute("role", "slider");
    area.setAttribute("aria-label", "time");
    area.setAttribute("aria-valuemin", "0");
    area.setAttribute("aria-valuemax", String(chart.x.length - 1));
    stand();
    cursor.setAttribute("visibility", "hidden");
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      at = atPercent((100 * (event.clientX - box.left)) / box.width);
      stand(event.clientX, event.clientY);
    });
    area.addEventListener("pointerleave", leave);
    area.addEventListener("focus", () => {
      if (area.matches(":focus-visible")) fromKeys();
    });
    area.addEventListener("blur", leave);
    area.addEventListener("keydown", (event) => {
      const last = chart.x.length - 1;
      const page = Math.max(1, Math.round(last / 20));
      const goal = {
        ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1,
        PageUp: at + page, PageDown: at - page, Home: 0, End: last,
      }[event.key];
      if (goal === undefined) return;
      event.preventDefault();
      at = Math.max(0, Math.min(goal, last));
      fromKeys();
    });
  }

  articles.forEach((article, number) => {
    const report = data[number];
    for (const map of article.querySelectorAll(".map")) setUpMap(map);
    for (const tree of article.querySelectorAll(".tree")) setUpTree(tree);
    for (const section of article.querySelectorAll("[data-table]")) setUpTable(section, report.tables[section.dataset.table]);
    for (const area of article.querySelectorAll("[data-chart]")) setUpChart(area, report.chart);
    for (const list of article.querySelectorAll(".composition, .key, .head")) onTips(list, tellPart);
  });
})();
