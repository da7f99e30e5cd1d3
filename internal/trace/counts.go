package trace

import (
	"fmt"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/runtime/exe"
)

// Counts puts the counters of two instances that did the same steps side by side: of the planned program and
// of the one that keeps everything, which runs every op once for each time that it is reached. The plan's
// number times that is what the planned program has to show.
func Counts(planned, all *compile.Program, a, b []int64) []Count {
	reached := map[[2]int]int64{}
	for i, r := range exe.SortOps(all.Exe.Ops) {
		reached[[2]int{r.ID, r.Sub}] += b[i]
	}
	var out []Count
	for i, r := range exe.SortOps(planned.Exe.Ops) {
		if n := len(out); n == 0 || out[n-1].ID != r.ID || out[n-1].Sub != r.Sub {
			out = append(out, Count{Op: r.Op, ID: r.ID, Sub: r.Sub, Name: r.Name, Planned: int64(r.Planned) * reached[[2]int{r.ID, r.Sub}]})
		}
		c := &out[len(out)-1]
		c.Executed += a[i]
		if r.Clone == 0 {
			c.Forward += a[i]
		} else {
			c.Recomputed += a[i]
		}
	}
	return out
}

// CheckCounts is the error for the first op that did not run as often as planned.
func CheckCounts(counts []Count) error {
	for _, c := range counts {
		if c.Planned != c.Executed {
			e := diag.Errorf("counts", "it ran %d times (%d of them recomputations), planned were %d", c.Executed, c.Recomputed, c.Planned).
				WithHint("reprise verify --trace shows where the programs part")
			e.Op = c.Name
			return e
		}
	}
	return nil
}

// Summary says in one line that counts are as planned.
func Summary(counts []Count) string {
	var forward, again int64
	for _, c := range counts {
		forward += c.Forward
		again += c.Recomputed
	}
	return fmt.Sprintf("%d ops ran as often as planned: %d times forward, %d times recomputed", len(counts), forward, again)
}
