package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/runtime/exe"
)

func (a *app) explainCmd() *cobra.Command {
	var f modelFlags
	var top int
	cmd := &cobra.Command{
		Use:   "explain PLAN.json|BINARY|MODEL [VALUE|LAYER-PATTERN]",
		Short: "Every value: its bytes, whether it is saved, recomputed or pinned, why, and its layer",
		Example: `  reprise explain ./gpt
  reprise explain ./gpt 'layers.3.*'
  reprise explain builtin:gpt --train --budget 40%`,
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, list []string) error {
			values, report, err := a.explained(cmd, &f, list[0])
			if err != nil {
				return err
			}
			all := len(values)
			if len(list) == 2 {
				var kept []compile.ValueReport
				for _, v := range values {
					byLayer, err := path.Match(list[1], v.Layer)
					if err != nil {
						return usageError{fmt.Errorf("pattern %q: %v", list[1], err)}
					}
					if byLayer || v.Name == strings.TrimPrefix(list[1], "%") || strings.HasPrefix(v.Layer, list[1]+".") {
						kept = append(kept, v)
					}
				}
				if len(kept) == 0 {
					return diag.Errorf("explain", "%q is no value, and no layer matches it", list[1]).WithHint("layers: %s", strings.Join(layers(values), ", "))
				}
				values = kept
			} else {
				compile.SortValues(values)
				if top > 0 && len(values) > top && !a.json {
					values = values[:top]
				}
			}
			if a.json {
				a.print(map[string]any{"report": report, "values": values})
				return nil
			}
			fmt.Fprintf(a.out, "arena %s; keeping all would take %s; %d values", compile.Bytes(report.ArenaBytes), compile.Bytes(report.SaveAllPeakBytes), all)
			if len(values) < all {
				fmt.Fprintf(a.out, ", %d shown", len(values))
			}
			fmt.Fprintln(a.out)
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "BYTES\tFATE\tRUNS\tLAYER\tVALUE\tTYPE\tOP\tWHY")
			for _, v := range values {
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%%%s\t%s\t%s\t%s\n", compile.Bytes(v.Bytes), v.Fate, v.Runs, v.Layer, v.Name, v.Type, v.Op, v.Reason)
			}
			return w.Flush()
		},
	}
	f.register(cmd, true)
	cmd.Flags().IntVar(&top, "top", 40, "show so many values, the largest (0: all)")
	return cmd
}

func (a *app) explained(cmd *cobra.Command, f *modelFlags, arg string) ([]compile.ValueReport, compile.Report, error) {
	var r compile.Report
	if isBinary(arg) {
		d, err := exe.ReadDescription(arg)
		if err != nil {
			return nil, r, diag.Errorf("binary", "%v", err)
		}
		var values []compile.ValueReport
		if err := json.Unmarshal(d.Plan, &values); err != nil {
			return nil, r, diag.Errorf("binary", "%s carries no plan: %v", arg, err)
		}
		return values, r, json.Unmarshal(d.Info, &r)
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
	return p.Values, p.Report, nil
}

// readPlanFile reads what plan -o wrote for a model.
func readPlanFile(path string) ([]compile.ValueReport, compile.Report, error) {
	var doc struct {
		Values []compile.ValueReport `json:"values"`
		Report compile.Report        `json:"report"`
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, doc.Report, diag.Errorf("file", "can't read %s: %v", path, errors.Unwrap(err))
	}
	if err := json.Unmarshal(data, &doc); err != nil || doc.Values == nil {
		e := diag.Errorf("plan", "no plan of a model: it has no values to explain").WithHint("write one with: reprise plan MODEL -o PLAN.json; a graph file's plan is read by reprise check")
		e.File = path
		return nil, doc.Report, e
	}
	return doc.Values, doc.Report, nil
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
