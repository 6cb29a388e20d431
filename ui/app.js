// The frame: which view is shown, its link to the gateway, light or dark.
import {forgetKey, hasKey, takeKey} from "./api.js";
import {h, refill} from "./dom.js";
import {listen, start, state} from "./feed.js";
import * as now from "./now.js";
import * as requests from "./requests.js";
import * as cache from "./cache.js";
import * as play from "./play.js";
import * as fleet from "./fleet.js";

const views = {now, requests, cache, play, fleet};
const THEME = "kvblend.theme";
const LINKS = {waiting: "connecting", live: "live", lost: "no connection, trying again", paused: "paused"};

let shown = null; // {name, update(), close()}

function setTheme(theme) {
    const dark = theme === "dark";
    document.documentElement.dataset.theme = theme;
    refill(document.getElementById("theme"), dark ? "Light" : "Dark");
    document.getElementById("theme").onclick = () => {
        localStorage.setItem(THEME, dark ? "light" : "dark");
        setTheme(dark ? "light" : "dark");
    };
}

function chooseTheme() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const chosen = () => localStorage.getItem(THEME) || (system.matches ? "dark" : "light");
    system.addEventListener("change", () => setTheme(chosen()));
    setTheme(chosen());
}

function showLink() {
    const p = document.getElementById("link");
    p.dataset.state = state.link;
    refill(p, LINKS[state.link], hasKey() && [" · ", h("button", {class: "plain", onclick: forgetKey}, "forget key")]);
}

function show() {
    takeKey();
    const [name, ...rest] = location.hash.slice(1).split("/");
    const view = views[name] || now;
    shown?.close?.();
    for (const a of document.querySelectorAll("nav a")) {
        if (a.hash === `#${views[name] ? name : "now"}`) a.setAttribute("aria-current", "page");
        else a.removeAttribute("aria-current");
    }
    document.title = `${view.title} · kvblend`;
    const main = document.getElementById("main");
    main.replaceChildren(h("h1", {}, view.title));
    shown = view.open(main, rest.map(decodeURIComponent)) || {};
    shown.update?.();
}

refill(document.getElementById("nav"),
       Object.entries(views).map(([name, v]) => h("a", {href: `#${name}`}, v.title)));
chooseTheme();
listen((what) => what === "link" ? showLink() : shown?.update?.());
addEventListener("hashchange", () => {
    show();
    document.getElementById("main").focus();
});
show();
showLink();
start();
