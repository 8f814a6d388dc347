// Pages stay true: whenever the service's stream tells of something, the page is fetched again, and what changed is put in its place.

import { News } from "./news.js";
import { prepare } from "./roving.js";

const POLL_MILLISECONDS = 2000;
const CHECK_MILLISECONDS = 30000;
const SETTLING_MILLISECONDS = 60;
const LONGEST_PAUSE_MILLISECONDS = 15000;
const SLOW_MILLISECONDS = 3000;
const ANSWER_MILLISECONDS = 30000;
const CLICK_MILLISECONDS = 500;

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export async function stayTrue() {
  const main = document.getElementById("main");
  if (!main.dataset.live) return;
  const page = { main, html: main.innerHTML, etag: null };
  const ear = earOf(main.dataset);
  for (let failures = 0; ; ) {
    await visible();
    const slow = setTimeout(tell, SLOW_MILLISECONDS, "waiting for an answer", true);
    try {
      const found = await changed(page);
      failures = 0;
      clearTimeout(slow);
      if (found) await show(page.main, found);
      tell("live", false);
      await ear.next();
    } catch (error) {
      failures += 1;
      clearTimeout(slow);
      tell("no answer, trying again", true);
      if (error.name === "TimeoutError") ear.news.rest();
      await pause(Math.min(500 * 2 ** failures, LONGEST_PAUSE_MILLISECONDS));
    }
  }
}

function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

// Something new: told by the stream, or perhaps there after a while: where the stream is away, and in the list of jobs, whose
// beginnings no stream tells. What was told is checked now and then: a connection that broke unnoticed tells nothing.
function earOf({ job, stream: address }) {
  const ofJob = job === undefined ? "/v1/stream" : `/v1/jobs/${encodeURIComponent(job)}/stream`;
  let isNew = false;
  let wake = () => {};
  const hear = () => {
    isNew = true;
    wake();
  };
  const news = new News(address ?? ofJob, hear);
  const tellsAll = job !== undefined && address === undefined;
  document.addEventListener("visibilitychange", hear);
  return {
    news,
    async next() {
      if (!isNew) {
        const told = new Promise((resolve) => (wake = resolve));
        await Promise.race([told, pause(tellsAll && news.isTold ? CHECK_MILLISECONDS : POLL_MILLISECONDS)]);
      }
      await pause(SETTLING_MILLISECONDS);
      isNew = false;
    },
  };
}

// The page as it is now, if it is another one than before.
async function changed(page) {
  const headers = page.etag ? { "If-None-Match": page.etag } : {};
  const response = await fetch(location.href, { cache: "no-store", headers, signal: AbortSignal.timeout(ANSWER_MILLISECONDS) });
  if (response.status === 304) return null;
  if (response.redirected) {
    location.assign(response.url);
    return null;
  }
  if (!response.ok) throw new Error(response.statusText);
  page.etag = response.headers.get("ETag");
  const found = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("main");
  if (found.innerHTML === page.html) return null;
  page.html = found.innerHTML;
  return found;
}

async function show(main, found) {
  if (main.dataset.live === "announce") return announce(main, found);
  await unselected(main);
  replace(main, found);
}

// What somebody selects stays as it is, to be copied; whoever gives it up by a click has clicked before the page changes.
async function unselected(main) {
  while (isSelected(main)) {
    tell("waits while text is selected", true);
    await new Promise((resolve) => document.addEventListener("selectionchange", resolve, { once: true }));
    await pause(CLICK_MILLISECONDS);
  }
}

function isSelected(main) {
  const selection = getSelection();
  return selection.type === "Range" && selection.containsNode(main, true);
}

// Where the page must not jump: how the job is doing, how the plan that is shown is doing, and whether there is a newer one.
function announce(main, found) {
  const newer = main.querySelector("#newer");
  if (found.dataset.generation !== main.dataset.generation) newer.hidden = false;
  for (const part of newer.hidden ? [".chips", "#notices"] : ["#notices"]) {
    const [shown, now] = [main, found].map((each) => each.querySelector(part));
    if (!shown.isEqualNode(now)) shown.replaceWith(now);
  }
}

function replace(main, found) {
  const focused = main.contains(document.activeElement) ? document.activeElement : null;
  const address = focused && (focused.id || focused.getAttribute("href"));
  const scrolled = [...main.querySelectorAll(".scroll")].map((element) => element.scrollLeft);
  main.replaceChildren(...found.childNodes);
  prepare(main);
  main.querySelectorAll(".scroll").forEach((element, index) => (element.scrollLeft = scrolled[index] ?? 0));
  if (focused) (sameOf(main, address) ?? main).focus({ preventScroll: true });
}

function sameOf(main, address) {
  return address && main.querySelector(`#${CSS.escape(address)}, [href="${CSS.escape(address)}"]`);
}

function tell(words, isStale) {
  const live = document.getElementById("live");
  live.hidden = false;
  live.classList.toggle("stale", isStale);
  if (live.textContent !== words) live.textContent = words;
}
