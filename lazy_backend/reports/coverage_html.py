"""The coverage report as one HTML page that can be searched and filtered, with no file beside it."""

import json
from typing import Any

from .coverage_text import headline

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Operator coverage</title>
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
input, select { font: inherit; padding: 4px; margin: 0 8px 12px 0 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #ddd; vertical-align: top }
th { position: sticky; top: 0; background: #fff; cursor: pointer }
.native, .decomposed { color: #186a3b } .fallback { color: #9a6700 }
.wrong, .missing { color: #b3261e; font-weight: 600 } .untested { color: #777 } small { color: #666 }
</style>
<h1>Operator coverage</h1>
<p><b>HEADLINE</b></p>
<input id="text" placeholder="name, unit, message" size="40" autofocus>
<span id="filters"></span> <span id="count"></span>
<table><thead><tr id="head"></tr></thead><tbody id="body"></tbody></table>
<script>
const ROWS = DATA;
const COLUMNS = ["name", "cls", "kind", "route", "state", "dtypes", "forward", "backward", "host", "verified by"];
const FILTERS = ["cls", "kind", "route", "state"];
const SHOWN = 600;
let order = "name";
const find = id => document.getElementById(id);
const cell = (row, name) => row[name] === undefined ? "" : String(row[name]);
for (const name of FILTERS) {
  const select = document.createElement("select");
  select.id = name;
  const values = [...new Set(ROWS.map(row => row[name]))].sort();
  for (const value of ["", ...values]) select.add(new Option(value || "any " + name, value));
  select.onchange = draw;
  find("filters").append(select);
}
for (const name of COLUMNS) {
  const th = document.createElement("th");
  th.textContent = name;
  th.onclick = () => { order = name; draw(); };
  find("head").append(th);
}
function draw() {
  const text = find("text").value.toLowerCase();
  const rows = ROWS.filter(row => FILTERS.every(f => !find(f).value || row[f] === find(f).value)
    && (!text || Object.values(row).join(" ").toLowerCase().includes(text)));
  rows.sort((a, b) => typeof a[order] === "number" ? b[order] - a[order] : cell(a, order) < cell(b, order) ? -1 : 1);
  find("count").textContent = rows.length + " of " + ROWS.length;
  find("body").replaceChildren(...rows.slice(0, SHOWN).map(row => {
    const tr = document.createElement("tr");
    for (const name of COLUMNS) {
      const td = document.createElement("td");
      td.textContent = cell(row, name);
      if (name === "state") td.className = row.state;
      tr.append(td);
    }
    return tr;
  }));
}
find("text").oninput = draw;
draw();
</script></html>
"""


def page(report: dict[str, Any]) -> str:
    """Return the page."""
    rows = [_row(overload) for overload in report["overloads"]]
    data = json.dumps(rows).replace("</", "<\\/")
    return _PAGE.replace("HEADLINE", headline(report)).replace("DATA", data, 1)


def _row(overload: dict[str, Any]) -> dict[str, Any]:
    verified: dict[str, dict[str, int]] = overload.get("verified", {})
    backward = sum(variants.get("backward", 0) for variants in verified.values())
    cases = sum(sum(variants.values()) for variants in verified.values())
    return {name: overload[name] for name in ("name", "cls", "kind", "route", "state")} | {
        "dtypes": " ".join(sorted(verified)),
        "forward": cases - backward,
        "backward": backward,
        "host": sum(overload.get("host", {}).values()),
        "verified by": " ".join(overload.get("units", [])),
    }
