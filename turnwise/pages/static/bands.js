"use strict";
// Several seeds as one curve: the mean, and its interval over seeds.
(() => {
  const T = window.Turnwise;
  // Student's t, 97.5 %, for 1 to 30 degrees of freedom.
  const STUDENT = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11, 2.101, 2.093,
    2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042,
  ];
  const student = (freedom) => STUDENT[freedom - 1] ?? 1.96 + 2.4 / freedom;

  // The mean of some values and its 95 % interval over them. The spread of one value, or of values that are all equal, is unknown.
  T.meanOf = (values) => {
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    if (values.length < 2) return { mean, low: null, high: null };
    const spread = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1));
    if (spread <= 1e-12 * Math.max(1, Math.abs(mean))) return { mean, low: null, high: null };
    const half = (student(values.length - 1) * spread) / Math.sqrt(values.length);
    return { mean, low: mean - half, high: mean + half };
  };

  // One curve of several runs, at the iterations that all of them have. If there is no spread (one run, or seeds that tie), the
  // band is the mean of the runs' own intervals (`edges`: the names of their ends), if they have any. `share`: values are in 0 to 1.
  T.bandOf = (all, metric, { edges, positive, share } = {}) => {
    const known = all.map((curves) => {
      const { x, y, at } = curves.points(metric, positive);
      const ends = (edges ?? []).map((name) => curves.columns.get(name) ?? []);
      return new Map(x.map((iteration, index) => [iteration, [y[index], ...ends.map((column) => column[at[index]] ?? null)]]));
    });
    const [first, ...rest] = known.length ? known : [new Map()];
    const x = [...first.keys()].filter((iteration) => rest.every((each) => each.has(iteration))).sort((a, b) => a - b);
    const found = { x, y: [], low: [], high: [] };
    const inside = (value) => (share && value !== null ? Math.min(1, Math.max(0, value)) : value);
    for (const iteration of x) {
      const rows = known.map((each) => each.get(iteration));
      let { mean, low, high } = T.meanOf(rows.map(([value]) => value));
      if (low === null && edges && rows.every(([, a, b]) => a !== null && b !== null)) {
        low = T.meanOf(rows.map(([, a]) => a)).mean;
        high = T.meanOf(rows.map(([, , b]) => b)).mean;
      }
      found.y.push(mean);
      found.low.push(inside(low));
      found.high.push(inside(high));
    }
    return found;
  };
})();
