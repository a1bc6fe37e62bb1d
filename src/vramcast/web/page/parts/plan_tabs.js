/** The plans that are compared, as buttons. */

import { h } from "../dom.js";
import { MOST_PLANS, answerTo } from "../question_state.js";
import { letterOf } from "./compare.js";
import { button } from "./part.js";
import { verdictBadge } from "./verdict.js";

function tab(plan, index, { active, several }, { t, named }, { choose, remove }) {
  const letter = letterOf(index);
  const chosen = { "aria-pressed": String(index === active), "data-key": `plan-${index}` };
  const name = h("b", {}, t("plan.name", { letter }));
  const answer = answerTo(plan);
  const badge = answer && verdictBadge(answer.verdict, { named });
  return h("span", { class: "tab" },
    button([name, badge], () => choose(index), chosen),
    several ? button("×", () => remove(index), { class: "remove", "aria-label": t("plan.remove", { letter }) }) : null);
}

/**
 * The row of plans, and the button that adds one.
 *
 * @param {{choose: (index: number) => void, add: () => void, remove: (index: number) => void}} acts
 */
export function planTabs(plans, active, app, acts) {
  const several = plans.length > 1;
  const full = plans.length >= MOST_PLANS;
  return h("div", { class: "plans", role: "group", "aria-label": app.t("plans") },
    several ? plans.map((plan, index) => tab(plan, index, { active, several }, app, acts)) : null,
    button(app.t("plan.add"), acts.add, {
      class: "add", "data-key": "add-plan", disabled: full, title: full ? app.t("plan.full") : null,
    }));
}
