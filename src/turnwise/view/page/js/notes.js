// A user's notes on a run are tags, a text and the archive flag; they are saved into its folder.

import { saveNotes } from "./api.js";
import { button, fill, h, html, icon } from "./dom.js";
import { visible } from "./format.js";

export function tagChips(tags, choose = null) {
  return tags.map((tag) =>
    choose
      ? html`<button class="chip tag" title=${`Show runs with the tag ${tag}`}
        onclick=${() => choose(tag)}>
        ${visible(tag)}
      </button>`
      : h("span.chip.tag", visible(tag)),
  );
}

function splitTags(text) {
  return [
    ...new Set(
      text
        .split(",")
        .map((tag) => tag.trim())
        .filter(Boolean),
    ),
  ];
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
    ${editButton(
      app,
      run,
      "Edit tags, note and archive",
      tags.length || note ? "" : "Add tags or a note",
    )}
  </div>`;
}

export function editButton(app, run, title, label = "") {
  if (!app.writeToken) return null;
  return html`<button class="button is-plain edit-notes"
    aria-label=${`Edit tags and note of ${run.key}`} title=${title}
    onclick=${() => editNotes(app, run)}>
    ${icon("edit")}${label}
  </button>`;
}

function editNotes(app, run) {
  const { tags, note, archived } = run.notes;
  const known = [...new Set(app.runs.flatMap((one) => one.notes.tags))].sort();
  const tagField = html`<input class="field" id="note-tags" value=${tags.join(", ")} placeholder="baseline, paper"
    autocomplete="off"
  />`;
  const add = (tag) => {
    tagField.value = [...new Set([...splitTags(tagField.value), tag])].join(", ");
    tagField.focus();
  };
  const noteField = h("textarea.field", { id: "note-text", rows: 4, maxlength: 10000 });
  noteField.value = note;
  const box = h("input", { type: "checkbox", id: "note-archived", checked: archived });
  const problem = h("p.dialog-problem", { role: "alert" });
  const submit = button("Save", { class: "button is-strong", type: "submit" });
  const dialog = h("dialog.dialog", { "aria-label": `Notes on ${run.key}` });
  const form = h(
    "form",
    {
      method: "dialog",
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          await save(app, run.key, {
            tags: splitTags(tagField.value),
            note: noteField.value.trim(),
            archived: box.checked,
          });
          dialog.close();
          app.redraw();
        } catch (error) {
          fill(problem, error.message);
          submit.disabled = false;
        }
      },
    },
    h("h2", run.key),
    h("label", { for: "note-tags" }, "Tags, separated by commas"),
    tagField,
    known.length > 0 &&
      html`<div class="dialog-tags">
        ${known.map(
          (tag) => html`<button class="chip tag" title="Add this tag" onclick=${() => add(tag)}>
            ${visible(tag)}
          </button>`,
        )}
      </div>`,
    h("label", { for: "note-text" }, "Note"),
    noteField,
    html`<label class="dialog-check" for="note-archived">
      ${box}Archived: hidden unless archived runs are shown
    </label>`,
    problem,
    html`<div class="dialog-end">
      <span class="faint">Saved as notes.json in the run's folder</span>
      <button class="button" onclick=${() => dialog.close()}>Cancel</button>${submit}
    </div>`,
  );
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
