package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"reprise/internal/diag"
	"reprise/planner"
)

// graphValue is what became of one value of a graph file.
type graphValue struct {
	Value  string `json:"value"`
	Bytes  int64  `json:"bytes"`
	Fate   string `json:"fate"` // resident, saved, recomputed, pinned or view
	Runs   int    `json:"runs"` // of the op that makes it
	AtPeak bool   `json:"at_peak"`
	Op     string `json:"op,omitempty"`
	Group  string `json:"group,omitempty"`
	Why    string `json:"why"`
}

// isGraph reports whether a file holds a graph, in our format or in that of nodes.
func isGraph(file string) bool {
	if !strings.HasSuffix(file, ".json") {
		return false
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var head struct {
		Format string          `json:"format"`
		RAM    json.RawMessage `json:"ram"`
	}
	return json.Unmarshal(data, &head) == nil && (strings.HasPrefix(head.Format, "reprise.graph/") || head.Format == "" && head.RAM != nil)
}

// explainGraph shows what a plan of a graph file does with each value: the plan of a file, or one that is made now.
func (a *app) explainGraph(cmd *cobra.Command, f *modelFlags, list []string, top int) error {
	g, err := readGraph(list[0])
	if err != nil {
		return err
	}
	pattern := ""
	var plan *planner.Plan
	if len(list) == 2 && strings.HasSuffix(list[1], ".json") {
		if err := f.settled("explain", "and a plan's file is explained as it was written"); err != nil {
			return err
		}
		data, err := os.ReadFile(list[1])
		if err != nil {
			return diag.Unreadable(list[1], err)
		}
		if plan, err = planner.ReadPlan(bytes.NewReader(data)); err != nil {
			return planError(list[1], err)
		}
	} else {
		if len(list) == 2 {
			pattern = list[1]
		}
		b, err := graphBudget(cmd, f.budget, g)
		if err != nil {
			return err
		}
		if plan, err = planner.Solve(cmd.Context(), g.Problem, planner.Options{Budget: b, TimeLimit: f.timeLimit}); err != nil {
			return graphError(list[0], err)
		}
	}
	rep, err := planner.Check(g.Problem, plan, -1)
	if err != nil {
		return graphError(list[0], err)
	}
	all := graphValues(g.Problem, plan, rep)
	values := all
	if pattern != "" {
		if values, err = graphMatching(all, pattern); err != nil {
			return err
		}
	}
	if a.json {
		a.print(map[string]any{"peak_bytes": rep.PeakBytes, "peak_position": rep.PeakPos, "cost": rep.Cost, "base_cost": rep.BaseCost,
			"lower_bound": plan.LowerBound, "proof": plan.Proof, "values": values})
		return nil
	}
	sort.SliceStable(values, func(i, j int) bool { return values[i].Bytes > values[j].Bytes })
	if pattern == "" && top > 0 && len(values) > top {
		values = values[:top]
	}
	where := ""
	if rep.PeakPos < len(plan.Order) {
		where = fmt.Sprintf(" at %s, position %d of %d", g.Problem.Ops[plan.Order[rep.PeakPos]].Name, rep.PeakPos, len(plan.Order))
	}
	fmt.Fprintf(a.out, "peak %d%s, cost %d (%.3f %% over %d), runs beyond the first: %d; %d values, %d shown\n", rep.PeakBytes, where,
		rep.Cost, 100*float64(rep.Cost-rep.BaseCost)/float64(max(rep.BaseCost, 1)), rep.BaseCost, rep.Recomputed, len(all), len(values))
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BYTES\tFATE\tAT PEAK\tVALUE\tOP\tGROUP\tWHY")
	for _, v := range values {
		fate, peak := v.Fate, ""
		if v.Runs > 2 {
			fate += fmt.Sprintf(" %d×", v.Runs-1)
		}
		if v.AtPeak {
			peak = "yes"
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", v.Bytes, fate, peak, v.Value, v.Op, v.Group, v.Why)
	}
	return w.Flush()
}

// graphValues says of every value, in the order of the problem, what a plan does with it and why.
func graphValues(p *planner.Problem, plan *planner.Plan, rep planner.Report) []graphValue {
	runs := make([]int, len(p.Ops))
	for _, i := range plan.Order {
		runs[i]++
	}
	list := make([]graphValue, len(p.Values))
	first := map[int]int{} // storage: the value that stands for it
	for v := range p.Values {
		pv := &p.Values[v]
		list[v] = graphValue{Value: pv.Name, Bytes: pv.Bytes, Fate: "resident", Why: "in memory all the time"}
		if pv.Name == "" {
			list[v].Value = fmt.Sprint(v)
		}
		if pv.Storage != 0 {
			if _, ok := first[pv.Storage]; !ok {
				first[pv.Storage] = v
			}
		}
	}
	for i := range p.Ops {
		op := &p.Ops[i]
		for _, v := range op.Outputs {
			pv, gv := &p.Values[v], &list[v]
			gv.Runs, gv.Op, gv.Group = runs[i], op.Name, op.Group
			switch of, shares := first[pv.Storage], pv.Storage != 0; {
			case shares && of != v:
				gv.Fate, gv.Why = "view", "shares the memory of "+list[of].Value
			case runs[i] > 1:
				gv.Fate, gv.Why = "recomputed", fmt.Sprintf("again for %d, at a cost of %d", runs[i]-1, int64(runs[i]-1)*op.Cost)
			case op.Effect != planner.EffectNone:
				gv.Fate, gv.Why = "pinned", fmt.Sprintf("its op has the effect %q and so runs once", op.Effect)
			case op.RunsOnce():
				gv.Fate, gv.Why = "pinned", fmt.Sprintf("its op is of determinism %q and so runs once", op.Det)
			case pv.Policy == planner.MustSave:
				gv.Fate, gv.Why = "saved", "must be saved"
			default:
				gv.Fate, gv.Why = "saved", "in memory from its op to its last reader"
			}
		}
	}
	for _, v := range rep.LiveAtPeak {
		list[v].AtPeak = true
	}
	return list
}

// graphMatching are the values whose name, op or group a pattern names.
func graphMatching(values []graphValue, pattern string) ([]graphValue, error) {
	var kept []graphValue
	for _, v := range values {
		for _, s := range []string{v.Value, v.Op, v.Group} {
			ok, err := path.Match(pattern, s)
			if err != nil {
				return nil, usageError{fmt.Errorf("pattern %q: %v", pattern, err)}
			}
			if ok {
				kept = append(kept, v)
				break
			}
		}
	}
	if len(kept) == 0 {
		return nil, diag.Errorf("explain", "%q names no value, op or group of the graph", pattern).WithHint("without it the largest values are shown")
	}
	return kept, nil
}
