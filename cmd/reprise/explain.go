package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/internal/explain"
	"reprise/runtime/exe"
)

func (a *app) explainCmd() *cobra.Command {
	var f modelFlags
	var top int
	var page string
	cmd := &cobra.Command{
		Use:   "explain PLAN.json|BINARY|MODEL|GRAPH.json [VALUE|LAYER-PATTERN|PLAN.json]",
		Short: "Every value: its bytes, whether it is saved, recomputed or pinned, why, and its layer",
		Long: `Shows what became of every value of a step and why: of a compiled model, which carries its
plan, of a plan's file, or of a model that is planned now; of a graph's file with the plan that
reprise plan wrote for it, or one that is made now. With --html it writes a page that
needs nothing else: memory by layer over the step, what is in memory at the peak, every
value, the schedule with what is run again, and the plan's certificate.

Fates: resident (state and inputs, in memory all the time), saved, recomputed, pinned (run
once because it must not run twice), local (read right after it is made), in-place (written
over what nothing reads any more), view (another shape of the same memory), constant, and
fused 3× (never in memory: each of three readers computes it for itself).`,
		Example: `  reprise explain ./gpt
  reprise explain ./gpt 'layers.3.*'
  reprise explain ./gpt attention            values of that name in any layer
  reprise explain ./gpt --html gpt.html
  reprise explain builtin:gpt --train --budget 40%
  reprise explain graph.json plan.json
  reprise explain graph.json --budget 70% 'd.*'`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, list []string) error {
			if top < 0 {
				return usageError{fmt.Errorf("explain: --top %d: want a number of values, or 0 for all", top)}
			}
			if isGraph(list[0]) {
				for _, name := range []string{"html", "train", "loss", "optimizer", "lr", "set", "bind", "costs", "target", "policy", "rule", "allow-unmatched"} {
					if cmd.Flags().Changed(name) {
						return usageError{fmt.Errorf("explain: --%s is for models, %s is a graph file", name, list[0])}
					}
				}
				return a.explainGraph(cmd, &f, list, top)
			}
			e, report, err := a.explained(cmd, &f, list[0])
			if err != nil {
				return err
			}
			if page != "" {
				var buf bytes.Buffer
				if err := explain.WriteHTML(&buf, report, e); err != nil {
					return err
				}
				if err := writeFile(page, buf.Bytes()); err != nil {
					return err
				}
			}
			values, all := e.Values, len(e.Values)
			if len(list) == 2 {
				if values, err = matching(values, list[1]); err != nil {
					return err
				}
			} else {
				values = slices.Clone(values)
				compile.SortValues(values)
				if top > 0 && len(values) > top && !a.json {
					values = values[:top]
				}
			}
			if a.json {
				a.print(map[string]any{"report": report, "memory": e.Memory, "ops": e.Ops, "values": values, "stretches": e.Stretches})
				return nil
			}
			a.explainText(report, e, values, all)
			return nil
		},
	}
	f.register(cmd, true)
	cmd.Flags().IntVar(&top, "top", 40, "show so many values, the largest (0: all)")
	cmd.Flags().StringVar(&page, "html", "", "also write a page with pictures to this `FILE`")
	return cmd
}

// explainText prints the numbers of the plan, then one line a value.
func (a *app) explainText(r compile.Report, e *compile.Explanation, values []compile.ValueReport, all int) {
	m := e.Memory
	fmt.Fprintf(a.out, "arena %s (%d bytes): %d for the whole step, %d at the peak (%s), %d unused\n", compile.Bytes(m.ArenaBytes), m.ArenaBytes,
		m.StepResidentBytes, m.PeakBytes, peakPlace(r), m.UnusedBytes)
	fmt.Fprint(a.out, planLines(r))
	if r.Policy != nil && r.Policy.Active() {
		fmt.Fprintf(a.out, "policy %s\n%s", r.Policy.Name, r.Policy)
	}
	fmt.Fprintf(a.out, "%d values", all)
	if len(values) < all {
		fmt.Fprintf(a.out, ", %d shown", len(values))
	}
	fmt.Fprintln(a.out)
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BYTES\tFATE\tVALUE\tTYPE\tLAYER\tWHY")
	for _, v := range values {
		fate := v.Fate
		switch {
		case v.Fate == compile.FateFused && v.Runs > 1: // by so many readers
			fate += fmt.Sprintf(" %d×", v.Runs)
		case v.Runs > 2:
			fate += fmt.Sprintf(" %d×", v.Runs-1)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", compile.Bytes(v.Bytes), fate, v.Name, v.Type, v.Layer, v.Reason)
	}
	_ = w.Flush()
}

// matching are the values of a name (whole, or as nn.Name gave it), an id (%12), or of the layers that a pattern or
// a path's beginning names.
func matching(values []compile.ValueReport, want string) ([]compile.ValueReport, error) {
	var kept []compile.ValueReport
	for _, v := range values {
		byLayer, err := path.Match(want, v.Layer)
		if err != nil {
			return nil, usageError{fmt.Errorf("pattern %q: %v", want, err)}
		}
		byName, _ := path.Match(want, v.Name)
		if byLayer || byName || v.Name == want || strings.HasSuffix(v.Name, ":"+want) || "%"+v.ID == want || strings.HasPrefix(v.Layer, want+".") {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		return nil, diag.Errorf("explain", "%q is no value, and no layer matches it", want).WithHint("layers: %s", strings.Join(layers(values), ", "))
	}
	return kept, nil
}

func (a *app) explained(cmd *cobra.Command, f *modelFlags, arg string) (*compile.Explanation, compile.Report, error) {
	var r compile.Report
	made := "and a compiled program is explained as it was made"
	if strings.HasSuffix(arg, ".json") {
		made = "and a plan's file is explained as it was written"
	}
	if isBinary(arg) || strings.HasSuffix(arg, ".json") {
		if err := f.settled("explain", made); err != nil {
			return nil, r, err
		}
	}
	if isBinary(arg) {
		d, err := exe.ReadDescription(arg)
		if err != nil {
			return nil, r, diag.Errorf("binary", "%v", err)
		}
		e := &compile.Explanation{}
		if err := json.Unmarshal(d.Plan, e); err != nil || e.Format != compile.ExplanationFormat {
			return nil, r, diag.Errorf("binary", "%s carries no plan that this program reads", arg).WithHint("compile it again with this version")
		}
		return e, r, json.Unmarshal(d.Info, &r)
	}
	if strings.HasSuffix(arg, ".json") {
		return readPlanFile(arg)
	}
	opt, err := f.options()
	if err != nil {
		return nil, r, err
	}
	m, err := f.load(arg)
	if err != nil {
		return nil, r, err
	}
	p, err := compile.Plan(cmd.Context(), m, opt)
	if err != nil {
		return nil, r, err
	}
	return p.Explanation, p.Report, nil
}

// readPlanFile reads what plan -o wrote for a model.
func readPlanFile(path string) (*compile.Explanation, compile.Report, error) {
	var doc struct {
		Explanation *compile.Explanation `json:"explanation"`
		Report      compile.Report       `json:"report"`
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, doc.Report, diag.Unreadable(path, err)
	}
	if err := json.Unmarshal(data, &doc); err != nil || doc.Explanation == nil || doc.Explanation.Format != compile.ExplanationFormat {
		e := diag.Errorf("plan", "no plan of a model: it has no values to explain").WithHint("write one with: reprise plan MODEL -o PLAN.json; a graph file's plan is read by reprise check")
		e.File = path
		return nil, doc.Report, e
	}
	return doc.Explanation, doc.Report, nil
}

func layers(values []compile.ValueReport) []string {
	seen := map[string]bool{}
	var out []string
	for _, v := range values {
		if !seen[v.Layer] && len(out) < 12 {
			seen[v.Layer] = true
			out = append(out, v.Layer)
		}
	}
	return out
}
