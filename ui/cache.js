// The store: tiers with their caps, its largest records as a map, all of them as a table; what is
// listed is sorted, filtered and cut into pages by the worker.
import {get, send} from "./api.js";
import {age, bytes, confirm, count, h, key, note, percent, refill, svg, table} from "./dom.js";
import {state, totals} from "./feed.js";

export const title = "Cache";
const PAGE = 50, MAPPED = 300, LOADED = 500;
const MAP = {width: 1000, height: 320};

// ---- tiers ----

async function preload(name, after) {
    const text = `Its ${LOADED} most recently used records are read into RAM, which makes room for them as for any other.`;
    if (!await confirm(`Load ${name} into RAM?`, text, "Load")) return;
    try {
        let loaded = 0;
        for (const w of state.last.workers.filter((x) => x.now))
            loaded += (await send("POST", `/admin/tiers/preload?worker=${w.index}`,
                                  {tier: name, count: LOADED})).loaded;
        after(`${name}: ${count(loaded)} records loaded.`);
    } catch (e) {
        after(e.message);
    }
}

function drawTier(name, t, after) {
    const cap = t.capacity_bytes, used = t.used_bytes, pinned = Math.min(t.pinned_bytes || 0, used);
    const share = cap > 0 ? used / cap : 0;
    return h("section", {class: "panel", "aria-label": `Tier ${name}`},
             h("div", {class: "bar"}, h("h2", {}, name), h("span", {class: "grow"}),
               h("span", {}, h("b", {}, bytes(used)),
                 cap > 0 ? ` of ${bytes(cap)} (${percent(share)})` : ", no cap known")),
             h("div", {class: "meter", role: "img", "aria-label": `${percent(share)} in use, ${bytes(pinned)} pinned`},
               h("span", {class: "c-prefix", "width%": cap > 0 ? 100 * pinned / cap : 0}),
               h("span", {class: `c-${name}`, "width%": cap > 0 ? 100 * (used - pinned) / cap : 0})),
             h("p", {class: "faint"}, [
                 `${count(t.records)} records`, `${count(t.hits)} hits`, `${count(t.evictions)} evictions`,
                 t.expired > 0 && `${count(t.expired)} expired`, pinned > 0 && `${bytes(pinned)} pinned`,
                 t.corrupt > 0 && `${count(t.corrupt)} corrupt`, t.errors > 0 && `${count(t.errors)} errors`,
                 t.load_bytes_per_s > 0 && `loads at ${bytes(t.load_bytes_per_s)}/s`,
                 t.dirty > 0 && `${count(t.dirty)} to be written`].filter(Boolean).join(" · ")),
             ["nvme", "redis"].includes(name) && t.records > 0 &&
                 h("div", {class: "bar"}, h("button", {type: "button", class: "small", "data-key": `load-${name}`,
                                                       onclick: () => preload(name, after)}, "Load into RAM")));
}

// What the tiers did in the last minute, by the differences of their counters.
const EVENTS = [["hits", "hits"], ["evictions", "evictions"], ["expired", "expired"], ["corrupt", "found corrupt"]];

function drawEvents() {
    const last = state.history.at(-1), first = state.history.find((x) => x.t >= last.t - 60);
    const of = (x, name, field) => x.totals.tiers?.[name]?.[field] || 0;
    const rows = Object.keys(last.totals.tiers || {}).map((name) => {
        const done = EVENTS.map(([field, text]) => [of(last, name, field) - of(first, name, field), text])
            .filter(([n]) => n > 0).map(([n, text]) => `${count(n)} ${text}`);
        const grown = of(last, name, "records") - of(first, name, "records");
        if (grown !== 0) done.push(`${grown > 0 ? "+" : "−"}${count(Math.abs(grown))} records`);
        return done.length > 0 && [h("b", {}, name), ` ${done.join(", ")}. `];
    }).filter(Boolean);
    return note("In the last minute: ", rows.length ? rows : "nothing.");
}

// ---- the map ----

// Squarified (Bruls, Huizing, van Wijk 2000): rows along the shorter side, as long as they become squarer.
// [[x, y, width, height], …] in the order of the sizes, which fall.
export function squarify(sizes, {width, height}) {
    const all = sizes.reduce((a, b) => a + b, 0);
    const areas = sizes.map((s) => s * width * height / all);
    const out = [];
    let x = 0, y = 0, w = width, hgt = height, from = 0;
    const worst = (row, side) => {
        const sum = row.reduce((a, b) => a + b, 0), high = Math.max(...row), low = Math.min(...row);
        return Math.max(side * side * high / (sum * sum), sum * sum / (side * side * low));
    };
    while (from < areas.length) {
        const side = Math.min(w, hgt);
        let to = from + 1;
        while (to < areas.length && worst(areas.slice(from, to + 1), side) <= worst(areas.slice(from, to), side)) to++;
        const sum = areas.slice(from, to).reduce((a, b) => a + b, 0), thick = sum / side;
        let along = 0;
        for (const a of areas.slice(from, to)) {
            const length = a / thick;
            out.push(w >= hgt ? [x, y + along, thick, length] : [x + along, y, length, thick]);
            along += length;
        }
        if (w >= hgt) {
            x += thick;
            w -= thick;
        } else {
            y += thick;
            hgt -= thick;
        }
        from = to;
    }
    return out;
}

// Five steps from cold to hot, by rank: a few records never set the scale for all.
function heat(records, value) {
    const order = [...records].sort((a, b) => value(a) - value(b));
    const step = new Map(order.map((r, i) => [r.id, Math.floor(5 * i / order.length)]));
    for (let i = 1; i < order.length; i++) // equal ones look equal
        if (value(order[i]) === value(order[i - 1])) step.set(order[i].id, step.get(order[i - 1].id));
    return (r) => `h${step.get(r.id)}`;
}

const COLOURS = {
    tier: {name: "fastest tier", of: () => (r) => `c-${r.tier}`},
    hits: {name: "hits", of: (all) => heat(all, (r) => r.hits)},
    recent: {name: "last use", of: (all) => heat(all, (r) => -r.idle_s)},
    age: {name: "age, young to old", of: (all) => heat(all, (r) => r.age_s)},
};

function drawMap(records, colour, choose) {
    if (records.length === 0) return note("Nothing is stored.");
    const kind = COLOURS[colour].of(records);
    const places = squarify(records.map((r) => Math.max(1, r.bytes)), MAP);
    const describe = (r) => `${r.kind} ${r.id.slice(0, 12)}${at(r)}, ${bytes(r.bytes)}, ${count(r.hits)} hits, ` +
        `in ${r.tiers}${r.pinned ? ", pinned" : ""}`;
    return svg("svg", {class: "treemap", viewBox: `0 0 ${MAP.width} ${MAP.height}`, role: "group",
                       "aria-label": "The largest records"},
               records.map((r, i) => {
                   const [x, y, width, height] = places[i].map((n) => n.toFixed(2));
                   return svg("rect", {x, y, width, height, class: kind(r), role: "button",
                                       tabindex: i === 0 ? "0" : "-1", "aria-label": describe(r),
                                       onclick: () => choose(r), onkeydown: (e) => move(e, r, choose)},
                              svg("title", {}, describe(r)));
               }));
}

// One stop of the tabulator for the whole map; arrows go from record to record.
function move(e, r, choose) {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    const all = [...e.target.parentNode.querySelectorAll("rect")];
    if (e.key === "Enter" || e.key === " ") choose(r);
    else if (step) all[(all.indexOf(e.target) + step + all.length) % all.length].focus();
    else return;
    e.preventDefault();
}

// ---- records ----

const ORDERS = { // [name, what follows, what was done]
    pin: ["Pin", "It will not be evicted until it is unpinned.", "pinned"],
    unpin: ["Unpin", "It may be evicted again.", "unpinned"],
    evict: ["Evict", "It goes from every tier; the next request that wants it computes it again.", "evicted"],
    move: ["Move", "Tiers that are faster than that one lose it.", "moved"],
};
const MOVABLE = ["ram", "nvme", "redis"]; // a GPU gets what is used again
const tiersNow = () => Object.keys(state.last ? totals(state.last).tiers ?? {} : {}).filter((t) => MOVABLE.includes(t));

// Where a record may be moved to, the likeliest first.
const targets = (r) => tiersNow().filter((t) => t !== r.tier);

const at = (r) => r.worker === undefined ? "" : ` at worker ${r.worker}`; // of several

async function act(r, verb, after) {
    const [name, follows, done] = ORDERS[verb];
    const text = `${r.id}${at(r)}: ${count(r.tokens)} tokens, ${bytes(r.bytes)}. ${follows}`;
    const path = `/admin/chunks/${r.id}`, worker = r.worker === undefined ? "" : `?worker=${r.worker}`;
    const to = h("select", {}, targets(r).map((t) => h("option", {}, t)));
    if (!await confirm(`${name} this record?`, text, name, verb === "move" && h("label", {}, "To", to))) return;
    try {
        if (verb === "move") await send("POST", `${path}/move${worker}${worker ? "&" : "?"}tier=${to.value}`);
        else if (verb === "evict") await send("DELETE", path + worker);
        else await send("POST", `${path}/${verb}${worker}`);
        after(`${r.id.slice(0, 12)}${at(r)}: ${done}${verb === "move" ? ` to ${to.value}` : ""}.`);
    } catch (e) {
        after(e.message);
    }
}

function columns(after, several) {
    const button = (r, verb) => h("button", {type: "button", class: "small", "data-key": `${verb}-${r.id}-${r.worker}`,
                                             "aria-label": `${ORDERS[verb][0]} ${r.id.slice(0, 12)}${at(r)}`,
                                             onclick: () => act(r, verb, after)}, ORDERS[verb][0]);
    return [
        {name: "Record", cell: (r) => h("code", {title: r.id}, r.id.slice(0, 12))},
        several && {name: "Worker", number: true, cell: (r) => r.worker},
        {name: "Kind", wide: true, cell: (r) => r.kind},
        {name: "Tiers", cell: (r) => h("span", {class: "tag"}, r.tiers)},
        {name: "Namespace", wide: true, cut: true, text: (r) => r.namespace, cell: (r) => r.namespace ?? "–"},
        {name: "Tokens", number: true, sort: "tokens", cell: (r) => count(r.tokens)},
        {name: "Size", number: true, sort: "bytes", cell: (r) => bytes(r.bytes)},
        {name: "Hits", number: true, sort: "hits", cell: (r) => count(r.hits)},
        {name: "Contexts", number: true, wide: true, sort: "contexts", cell: (r) => count(r.contexts)},
        {name: "Age", number: true, wide: true, sort: "age_s", cell: (r) => age(r.age_s)},
        {name: "Unused for", number: true, sort: "idle_s", cell: (r) => age(r.idle_s)},
        {name: "Actions", hidden: true, cell: (r) =>
            [button(r, r.pinned ? "unpin" : "pin"), targets(r).length > 0 && [" ", button(r, "move")], " ",
             button(r, "evict")]},
    ].filter(Boolean);
}

// ---- namespaces ----

const SPACES = 50;
const spaceName = (x) => x.namespace ?? `#${x.namespace_hash}`;

// What each has in each tier, beside its cap; choose(name): its records alone.
function drawSpaces(workers, choose) {
    const several = workers.length > 1;
    const all = workers.flatMap((w) => (w.namespaces?.data ?? []).flatMap((x) =>
        x.tiers.map((t) => ({...t, space: x, worker: w.index}))));
    const held = (r) => r.cap_bytes > 0 && h("div", {class: "meter", "aria-hidden": "true"},
        h("span", {class: `c-${r.tier}`, "width%": Math.min(100, 100 * r.bytes / r.cap_bytes)}));
    const name = (r) => r.space.namespace === null ? spaceName(r.space) :
        h("button", {type: "button", class: "plain", onclick: () => choose(r.space.namespace),
                     "data-key": `space-${spaceName(r.space)}-${r.tier}-${r.worker}`}, spaceName(r.space));
    const columns = [
        {name: "Namespace", cut: true, text: (r) => spaceName(r.space), cell: name},
        several && {name: "Worker", number: true, cell: (r) => r.worker},
        {name: "Tier", cell: (r) => h("span", {class: "tag"}, r.tier)},
        {name: "Records", number: true, cell: (r) => count(r.records)},
        {name: "Held", number: true, cell: (r) => bytes(r.bytes)},
        {name: "Cap", number: true, cell: (r) => r.cap_bytes > 0 ? bytes(r.cap_bytes) : "none"},
        {name: "Of the cap", cell: (r) => held(r) || "–"},
    ].filter(Boolean);
    return [table(columns, all.slice(0, SPACES), {caption: "Namespaces"}),
            all.length > SPACES &&
                note(`The first ${SPACES} of ${all.length} rows: those with a cap, then those with most.`),
            note("Caps are set by ", h("code", {}, "worker.namespace"), " or ",
                 h("code", {}, "kvblendctl quota TIER SIZE --namespace NAME"),
                 "; a full namespace evicts its own records only.")];
}

// ---- warming ----

// Texts as an application sends them, parted by lines of three dashes; "KEY/BODY" as everywhere.
async function warm(texts, namespace, after) {
    const list = texts.split(/^---\s*$/m).map((x) => x.replace(/^\n+|\n+$/g, "")).filter((x) => x.trim());
    const [outer, ...inner] = namespace.split("/");
    if (list.length === 0) {
        after("There is no text.");
        return;
    }
    if (!await confirm(`Build records of ${list.length === 1 ? "one text" : `${list.length} texts`}?`,
                       "The model computes those that are not stored yet, before requests that wait.", "Build")) return;
    after("Building.");
    try {
        const within = inner.length > 0 && {namespace: inner.join("/")};
        const r = await send("POST", "/v1/segments", {texts: list, wait: true, ...within},
                             outer ? {"X-KVBlend-Namespace": outer} : {});
        const ready = r.data.filter((x) => x.status === "ready");
        after(`${count(ready.length)} of ${count(list.length)} are stored: ` +
              `${count(ready.reduce((n, x) => n + x.tokens, 0))} tokens.`);
    } catch (e) {
        after(e.message);
    }
}

function warmPanel(after) {
    const texts = h("textarea", {id: "warm-texts", rows: "6", spellcheck: "false"});
    const space = h("input", {id: "warm-space", size: "16"});
    return h("details", {class: "panel"}, h("summary", {}, "Warm texts"),
             note("Their KV is stored before anybody asks. A text must be as it will come, to the last blank; lines ",
                  "of ", h("code", {}, "---"), " part several. The namespace is that of the key that will ask."),
             h("label", {class: "stack", for: "warm-texts"}, "Texts", texts),
             h("div", {class: "bar"}, h("label", {for: "warm-space"}, "In namespace", space),
               h("button", {type: "button", onclick: () => warm(texts.value, space.value.trim(), after)},
                 "Build records")));
}

export function open(main) {
    const q = {sort: "bytes", order: "desc", offset: 0, prefix: "", namespace: "", kind: ""};
    const tiers = h("div", {class: "grid"}), events = h("div", {"aria-label": "What happens", role: "group"});
    const map = h("section", {class: "panel", "aria-label": "Map of records"});
    const list = h("div", {class: "panel"}), spaces = h("div", {class: "panel"});
    const said = h("p", {role: "status", class: "note"});
    let colour = "tier", mapped = [], delay = 0, asked = 0;

    const read = (o) => get("/admin/chunks?" + Object.entries(o).filter(([, v]) => v !== "")
        .map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join("&"));
    const pages = (page) => h("div", {class: "bar"},
        h("button", {type: "button", "data-key": "before", disabled: q.offset === 0,
                     onclick: () => turn({offset: Math.max(0, q.offset - PAGE)})}, "Before"),
        h("button", {type: "button", "data-key": "next", disabled: q.offset + PAGE >= page.total,
                     onclick: () => turn({offset: q.offset + PAGE})}, "Next"),
        h("span", {class: "faint"},
          page.total > 0 ? `${q.offset + 1} to ${q.offset + page.count} of ${count(page.total)}` : ""));

    function drawRecords(page) {
        const onsort = (sort) => turn({sort, offset: 0, order: q.sort === sort && q.order === "desc" ? "asc" : "desc"});
        const o = {caption: "Records", sorted: q.sort, order: q.order, onsort};
        const silent = page.workers?.filter((w) => w.total === null).map((w) => w.index) ?? [];
        refill(list, table(columns(done, page.workers), page.data, o), pages(page),
               silent.length > 0 && note(`Without those of worker ${silent.join(", ")}, which does not answer.`));
    }

    function drawRecordMap() {
        const pick = h("select", {"data-key": "colour", onchange: (e) => {
            colour = e.target.value;
            drawRecordMap();
        }}, Object.entries(COLOURS).map(([k, c]) => h("option", {value: k, selected: k === colour}, c.name)));
        const held = [...new Set(mapped.map((r) => r.tier))];
        const name = mapped.length < MAPPED ? "All records by size" : `The ${MAPPED} largest records`;
        refill(map, h("div", {class: "bar"}, h("h2", {}, name), h("span", {class: "grow"}),
                      h("label", {}, "Colour by", pick)),
               drawMap(mapped, colour, (r) => turn({prefix: r.id, offset: 0})),
               colour === "tier" ? key(held.map((t) => [t, t])) : note("Pale is least, full is most, by rank."));
    }

    async function load() {
        const mine = ++asked;
        try {
            const page = await read({...q, limit: PAGE});
            const largest = await read({...q, prefix: "", sort: "bytes", order: "desc", offset: 0, limit: MAPPED});
            const held = (await get("/admin/namespaces")).workers;
            if (mine !== asked) return; // a later question has been asked meanwhile
            mapped = largest.data;
            drawRecords(page);
            drawRecordMap();
            refill(spaces, drawSpaces(held, (namespace) => turn({namespace, offset: 0})));
        } catch (e) {
            if (mine === asked) refill(said, h("span", {class: "bad"}, e.message));
        }
    }

    function turn(change) {
        Object.assign(q, change);
        find.value = q.prefix;
        space.value = q.namespace;
        void load();
    }

    function done(text) {
        refill(said, text);
        void load();
    }

    const typed = (name) => (e) => {
        clearTimeout(delay);
        delay = setTimeout(() => turn({[name]: e.target.value.trim(), offset: 0}), 250);
    };
    const find = h("input", {type: "search", size: "18", placeholder: "first digits of an id",
                             oninput: typed("prefix")});
    const space = h("input", {type: "search", size: "12", oninput: typed("namespace")});
    main.append(tiers, events,
                h("div", {class: "bar", role: "search"}, h("label", {}, "Find", find),
                  h("label", {}, "Namespace", space),
                  h("label", {}, "Kind", h("select", {onchange: (e) => turn({kind: e.target.value, offset: 0})},
                                           h("option", {value: ""}, "all"), h("option", {value: "chunk"}, "chunks"))),
                  h("button", {type: "button", onclick: () => done("")}, "Read again")),
                said, map, list, spaces, warmPanel(done));
    void load();
    return {
        update() {
            const now = state.last && totals(state.last).tiers;
            if (!now) return;
            refill(tiers, Object.entries(now).map(([name, t]) => drawTier(name, t, done)));
            refill(events, drawEvents());
        },
        close: () => clearTimeout(delay),
    };
}
