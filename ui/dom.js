// Elements and numbers for people. Whatever comes from outside becomes text by here, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value === undefined || value === null || value === false) continue;
        if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
        else if (name === "width%") node.style.width = `${value}%`;
        else if (name === "left%") node.style.left = `${value}%`;
        else if (name === "height%") node.style.height = `${value}%`;
        else if (name === "grow") node.style.flexGrow = value;
        else if (name === "value") node.value = value;
        else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(9).filter((x) => x !== null && x !== undefined && x !== false));
    return node;
}

// h("p", {class: "note"}, "text", h("b", {}, "more")); "width%", "left%", "height%" and "grow" are styles.
export function h(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Puts new children into a node and keeps the focus where it was, by the elements' data-key.
export function refill(node, ...children) {
    const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    node.replaceChildren(...children.flat(9).filter(Boolean));
    if (key) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({preventScroll: true});
    return node;
}

export function count(n) {
    if (n === undefined || n === null || !Number.isFinite(n)) return "–";
    if (Math.abs(n) < 10000) return String(Math.round(n));
    const units = ["k", "M", "G", "T"];
    let i = -1;
    while (Math.abs(n) >= 1000 && i < units.length - 1) {
        n /= 1000;
        i++;
    }
    return `${n < 100 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export function bytes(n) {
    if (n === undefined || n === null || !Number.isFinite(n)) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (n >= 1024 && i < units.length - 1) {
        n /= 1024;
        i++;
    }
    return `${i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function ms(t) {
    if (t === undefined || t === null || !Number.isFinite(t)) return "–";
    if (t < 1) return `${t.toFixed(2)} ms`;
    if (t < 1000) return `${t < 10 ? t.toFixed(1) : Math.round(t)} ms`;
    return `${(t / 1000).toFixed(t < 10000 ? 2 : 1)} s`;
}

export function age(s) {
    if (s === undefined || s === null || !Number.isFinite(s)) return "–";
    if (s < 60) return `${Math.round(s)} s`;
    if (s < 3600) return `${Math.round(s / 60)} min`;
    if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
    return `${Math.round(s / 86400)} d`;
}

export function percent(share) {
    if (!Number.isFinite(share)) return "–";
    const p = share * 100;
    return `${p > 0 && p < 9.95 ? p.toFixed(1) : Math.round(p)} %`;
}

export function clock(when) {
    return new Date(when).toLocaleTimeString(undefined, {hour12: false});
}

// "120 (8.0 %)"
export function part(n, all) {
    return `${count(n)} (${percent(n / all)})`;
}

export function panel(title, ...children) {
    return h("section", {class: "panel"}, h("h2", {}, title), children);
}

export function note(...children) {
    return h("p", {class: "note"}, children);
}

// [[class, amount, name], …] as one bar; the names are what a screen reader hears.
export function shares(parts, size) {
    const all = parts.reduce((sum, [, n]) => sum + n, 0);
    const text = parts.filter(([, n]) => n > 0).map(([, n, name]) => `${name} ${percent(n / all)}`);
    return h("div", {class: `stack-bar ${size || ""}`, role: "img", "aria-label": text.join(", ") || "nothing",
                     title: text.join(", ")},
             parts.map(([kind, n]) => n > 0 && h("span", {class: `c-${kind}`, "width%": 100 * n / all})));
}

export function key(parts) {
    return h("ul", {class: "key"},
             parts.map(([kind, name, value]) => h("li", {}, h("i", {class: `c-${kind}`, "aria-hidden": "true"}), name,
                                                  value !== undefined && ` ${value}`)));
}

// Rows of [name, share of 0 … 1, value, class].
export function bars(rows) {
    return h("div", {class: "rows"}, rows.map(([name, share, value, kind]) => [
        h("span", {}, name),
        h("div", {class: "meter", "aria-hidden": "true"},
          h("span", {class: `c-${kind || "reused"}`, "width%": 100 * Math.min(1, share || 0)})),
        h("span", {class: "right"}, value)]));
}

export function figures(list) {
    return h("dl", {class: "figures"}, list.map(([name, value, more]) =>
        h("div", {}, h("dt", {}, name), h("dd", {}, value, more && h("small", {}, ` ${more}`)))));
}

// columns: {name, cell(row)}, and as they need it: number, sort, wide (not on a phone), cut and text(row), hidden (its
// name is for screen readers). o: caption, sorted, order, onsort(sort).
export function table(columns, rows, o) {
    const head = columns.map((c) => {
        const sorted = c.sort && o.sorted === c.sort;
        return h("th", {scope: "col", class: [c.number && "number", c.wide && "wide"].filter(Boolean).join(" ") || null,
                        "aria-sort": sorted ? (o.order === "asc" ? "ascending" : "descending") : null},
                 c.sort ? h("button", {type: "button", class: "plain", "data-key": `sort-${c.sort}`,
                                       onclick: () => o.onsort(c.sort)},
                            c.name, sorted && h("span", {"aria-hidden": "true"}, o.order === "asc" ? " ▴" : " ▾"))
                        : c.hidden ? h("span", {class: "unseen"}, c.name) : c.name);
    });
    const cell = (c, row) => h("td", {class: [c.number && "number", c.cut && "cut", c.wide && "wide"]
                                              .filter(Boolean).join(" ") || null,
                                      title: c.cut ? c.text?.(row) : null}, c.cell(row));
    return h("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": o.caption},
             h("table", {}, h("caption", {}, o.caption), h("thead", {}, h("tr", {}, head)),
               h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((c) => cell(c, row)))))));
}

// Asks; resolves to true where the answer is yes. more: fields below the text.
export function confirm(title, text, yes, more) {
    return new Promise((resolve) => {
        const d = h("dialog", {"aria-labelledby": "confirm-title"},
                    h("form", {method: "dialog"}, h("h2", {id: "confirm-title"}, title), h("p", {}, text), more,
                      h("div", {class: "bar"}, h("button", {value: "no"}, "Cancel"),
                        h("button", {class: "main", value: "yes"}, yes))));
        d.addEventListener("close", () => {
            d.remove();
            resolve(d.returnValue === "yes");
        });
        document.body.append(d);
        d.showModal();
    });
}
