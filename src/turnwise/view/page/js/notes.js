// A user's notes on a run are tags, a text and the archive flag; they are saved into its folder.

import { saveNotes } from "./api.js";
import { fill, h, html, icon } from "./dom.js";
import { visible } from "./format.js";

export function tagChips(tags, choose = null) {
  return tags.map((tag) =>
    choose
      ? tagButton(tag, `Show runs with the tag ${tag}`, () => choose(tag))
      : h("span.chip.tag", visible(tag)),
  );
}

export function tagButton(tag, title, choose, isOn = null) {
  return html`<button class="chip tag ${isOn ? "is-accent" : ""}" title=${title} onclick=${choose}
    aria-pressed=${isOn === null ? null : String(isOn)}>
    ${visible(tag)}
  </button>`;
}

function splitTags(text) {
  const tags = text.split(",").map((tag) => tag.trim());
  return [...new Set(tags.filter(Boolean))];
}

// Looks the run up after the request, since the list of runs may have been replaced in between.
async function save(app, key, changes) {
  const notes = await saveNotes(key, changes, app.writeToken);
  const run = app.run(key);
  if (run) run.notes = notes;
}

// Changes the notes of some runs, one after the other, and reports refusals.
export async function changeNotes(app, runs, changes) {
  try {
    for (const run of runs) await save(app, run.key, changes);
  } catch (error) {
    say(error.message);
  }
  app.redraw();
}

export function say(text) {
  const place = document.getElementById("notices");
  const notice = h(".notice", text);
  place.append(notice);
  setTimeout(() => notice.remove(), 8000);
}

// Shows the notes above a run's curves, with a button to edit them.
export function notesLine(app, run) {
  const { tags, note, archived } = run.notes;
  return html`<div class="run-notes">
    ${archived && html`<span class="chip is-warn">archived</span>`}${tagChips(tags)}
    ${note && html`<span class="run-note">${visible(note)}</span>`}
    ${editButton(app, run, tags.length || note ? "" : "Add tags or a note")}
  </div>`;
}

export function editButton(app, run, label = "") {
  if (!app.writeToken) return null;
  return html`<button class="button is-plain edit-notes"
    aria-label=${`Edit tags and note of ${run.key}`} title="Edit tags, note and archive"
    data-name=${`edit ${run.key}`}
    onclick=${() => editNotes(app, run)}>
    ${icon("edit")}${label}
  </button>`;
}

function editNotes(app, run) {
  const dialog = document.getElementById("notes");
  const part = (selector) => dialog.querySelector(selector);
  const [tags, text, box] = ["#note-tags", "#note-text", "#note-archived"].map(part);
  const [problem, submit] = [".dialog-problem", "[type=submit]"].map(part);
  const known = [...new Set(app.runs.flatMap((one) => one.notes.tags))].sort();
  const add = (tag) => {
    tags.value = splitTags(`${tags.value},${tag}`).join(", ");
    tags.focus();
  };
  dialog.ariaLabel = `Notes on ${run.key}`;
  part("h2").textContent = run.key;
  tags.value = run.notes.tags.join(", ");
  text.value = run.notes.note;
  box.checked = run.notes.archived;
  submit.disabled = false;
  fill(problem);
  fill(
    part(".dialog-tags"),
    known.map((tag) => tagButton(tag, "Add this tag", () => add(tag))),
  );
  part("[type=button]").onclick = () => dialog.close();
  part("form").onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    const note = text.value.trim();
    try {
      await save(app, run.key, { tags: splitTags(tags.value), note, archived: box.checked });
      dialog.close();
      app.redraw();
    } catch (error) {
      fill(problem, error.message);
      submit.disabled = false;
    }
  };
  dialog.showModal();
}
