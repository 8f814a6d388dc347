// What every page does once it is there.

import { stayTrue } from "./live.js";
import { listen, prepare } from "./roving.js";
import { offerThemes } from "./switch.js";

offerThemes();
listen();
stayTrue();
prepare(document);

const schedule = document.getElementById("schedule");
if (schedule) import("./schedule.js").then(({ show }) => show(schedule));

const study = document.getElementById("study");
if (study) {
  import("./study.js").then(({ answerAtOnce }) => answerAtOnce(study));
  document.addEventListener("answered", (event) => prepare(event.target));
}
