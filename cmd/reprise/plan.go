package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/planner"
)

func (a *app) planCmd() *cobra.Command {
	var f modelFlags
	var out string
	var pareto int
	var against bool
	cmd := &cobra.Command{
		Use:   "plan MODEL|GRAPH.json",
		Short: "Plan a model or a graph file within a budget, without making code",
		Example: `  reprise plan builtin:gpt --train --budget 50%
  reprise plan builtin:gpt --train --policy dots_saveable --compare
  reprise plan graph.json --budget 70% -o plan.json --json`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			given := cmd.Flags().Changed
			graph := strings.HasSuffix(list[0], ".json") && !strings.HasSuffix(list[0], "config.json")
			switch {
			case given("pareto") && (pareto < 1 || pareto > maxPareto):
				return usageError{fmt.Errorf("plan: --pareto=%d: want 1 to %d budgets", pareto, maxPareto)}
			case given("pareto") && f.budget != "":
				return usageError{fmt.Errorf("plan: --pareto chooses the budgets: leave --budget out")}
			case against && (given("pareto") || f.budget != "" || out != ""):
				return usageError{fmt.Errorf("plan: --compare goes by the policy alone, and writes no plan: leave --budget, --pareto and -o out")}
			case given("pareto") && out != "" && !graph:
				return usageError{fmt.Errorf("plan: the curve of a model is no plan: leave -o out, --json prints it")}
			}
			if graph {
				if f.policy != "" || f.rules != nil || against {
					return usageError{fmt.Errorf("plan: policies are for models; a graph file says it of each value, in \"policy\"")}
				}
				for _, name := range []string{"train", "loss", "optimizer", "lr", "set", "bind", "costs", "target", "allow-unmatched"} {
					if given(name) {
						return usageError{fmt.Errorf("plan: --%s is for models, %s is a graph file", name, list[0])}
					}
				}
				if pareto > 0 {
					return a.graphCurve(cmd, list[0], out, pareto)
				}
				return a.planGraph(cmd, list[0], f.budget, out, f.timeLimit)
			}
			opt, err := f.options()
			if err != nil {
				return err
			}
			m, err := f.load(list[0])
			if err != nil {
				return err
			}
			say, done := a.progress()
			opt.Progress = say
			if against {
				c, err := compile.ComparePolicy(cmd.Context(), m, opt)
				done()
				if err != nil {
					return err
				}
				a.comparison(c)
				return nil
			}
			if pareto > 0 {
				c, err := compile.Pareto(cmd.Context(), m, opt, pareto)
				done()
				if err != nil {
					return err
				}
				a.curve(c)
				return nil
			}
			p, err := compile.Plan(cmd.Context(), m, opt)
			done()
			if err != nil {
				return err
			}
			if out != "" {
				text, err := p.PlanJSON()
				if err != nil {
					return err
				}
				if err := writeFile(out, []byte(text)); err != nil {
					return err
				}
			}
			a.warn(p.Report)
			if a.json {
				a.print(p.Report)
			} else {
				fmt.Fprint(a.out, summary(m, p.Report, ""))
			}
			return nil
		},
	}
	f.register(cmd, true)
	cmd.Flags().BoolVar(&against, "compare", false, "what the model costs under the policy, and under the planner's choice in the same bytes")
	cmd.Flags().StringVarP(&out, "output", "o", "", "write the plan to this file")
	cmd.Flags().IntVar(&pareto, "pareto", 0, "plan at so many budgets (--pareto=5), from the smallest found to keeping everything")
	cmd.Flags().Lookup("pareto").NoOptDefVal = "9"
	return cmd
}

// maxPareto is the most budgets of one curve.
const maxPareto = 1000

// curve prints memory against time.
func (a *app) curve(c *compile.Curve) {
	if a.json {
		a.print(c)
		return
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BUDGET\tOF ALL\tOVERHEAD\tAT LEAST\tRECOMPUTED")
	for _, p := range c.Points {
		fmt.Fprintf(w, "%s\t%.0f %%\t%.2f %%\t%.2f %%\t%d\n", compile.Bytes(p.ArenaBytes), 100*float64(p.ArenaBytes)/float64(c.SaveAllPeakBytes),
			100*p.Overhead, 100*(p.Overhead-p.Gap), p.Recomputed)
	}
	_ = w.Flush()
}

// writeFile replaces a file whole or not at all. What is no file (a terminal, a pipe, /dev/null) is
// written to and stays what it is.
func writeFile(name string, data []byte) error {
	fail := func(err error) error { return diag.Unwritable(name, err) }
	if at, err := os.Stat(name); err == nil && !at.Mode().IsRegular() {
		if err := os.WriteFile(name, data, 0o666); err != nil {
			return fail(err)
		}
		return nil
	}
	tmp := fmt.Sprintf("%s.tmp.%d", name, os.Getpid())
	err := os.WriteFile(tmp, data, 0o666)
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fail(err)
	}
	return nil
}

// plain is the planner's message without its name.
func plain(err error) string { return strings.TrimPrefix(err.Error(), "planner: ") }

// graphError is what the planner says of a graph file.
func graphError(path string, err error) error {
	e := diag.Errorf("graph", "%s", plain(err)).WithHint("docs/planner.md has the form of graph files")
	e.File = path
	return e
}

// planError is what the planner says of the file of a plan.
func planError(path string, err error) error {
	e := diag.Errorf("plan", "%s", plain(err)).WithHint("write one with: reprise plan GRAPH.json -o %s", path)
	e.File = path
	return e
}

func readGraph(path string) (*planner.Graph, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, diag.Unreadable(path, err)
	}
	g, err := planner.ReadGraph(bytes.NewReader(data))
	if err != nil {
		return nil, graphError(path, err)
	}
	return g, nil
}

// graphBudget is a plain number in the file's unit, a share of the peak without recomputation, or the smallest found.
func graphBudget(cmd *cobra.Command, s string, g *planner.Graph) (int64, error) {
	if strings.TrimSpace(s) == "" {
		if cmd.Flags().Changed("budget") { // as from a variable of the shell that is not set
			return 0, usageError{errors.New("--budget is given and empty")}
		}
		return -1, nil
	}
	if s == "min" {
		plan, err := planner.MinBudgetOptions(cmd.Context(), g.Problem, planner.Options{})
		if err != nil {
			return 0, diag.Errorf("plan", "%s", plain(err))
		}
		return plan.PeakBytes, nil
	}
	if p, ok := strings.CutSuffix(s, "%"); ok {
		x, err := strconv.ParseFloat(p, 64)
		if err != nil || !(x > 0 && x < 1e6) {
			return 0, usageError{fmt.Errorf("budget %q is no percentage", s)}
		}
		return max(1, int64(float64(g.NoRematPeak)*x/100)), nil // 0 would be no limit
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 {
		return 0, usageError{fmt.Errorf("budget %q: for a graph file give a number in the file's unit, a percentage, or min", s)}
	}
	return n, nil
}

func (a *app) planGraph(cmd *cobra.Command, path, budget, out string, limit time.Duration) error {
	g, err := readGraph(path)
	if err != nil {
		return err
	}
	b, err := graphBudget(cmd, budget, g)
	if err != nil {
		return err
	}
	plan, err := planner.Solve(cmd.Context(), g.Problem, planner.Options{Budget: b, TimeLimit: limit})
	var inf *planner.InfeasibleError
	if errors.As(err, &inf) {
		e := &compile.BudgetError{MinBudget: inf.MinBudget, LowerBound: inf.LowerBoundBytes,
			Diag: diag.Errorf("budget", "%s", plain(inf)).WithHint("give at least --budget %d", inf.MinBudget)}
		for _, v := range inf.Binding {
			e.Binding = append(e.Binding, compile.Binding{Name: g.Problem.Values[v].Name, Bytes: g.Problem.Values[v].Bytes})
		}
		if n := unknown(g.Problem); n > 0 {
			e.Diag = e.Diag.WithHint("give at least --budget %d; or, as %d of the %d ops are of unknown determinism and so run once, say which may run again: \"det\": \"exact\"", inf.MinBudget, n, len(g.Problem.Ops))
		}
		return e
	}
	if err != nil {
		return graphError(path, err)
	}
	var buf bytes.Buffer
	if err := planner.WritePlan(&buf, plan); err != nil {
		return err
	}
	if out != "" {
		if err := writeFile(out, buf.Bytes()); err != nil {
			return err
		}
	}
	if a.json {
		_, err := a.out.Write(buf.Bytes())
		return err
	}
	of := ""
	if b >= 0 {
		of = fmt.Sprintf(" of %d", b)
	}
	fmt.Fprintf(a.out, "peak %d%s, cost %d (%.3f %% over %d); proven: at least %.3f %% (%s); %s, %.2f s\n", plan.PeakBytes, of,
		plan.Cost, 100*plan.Overhead, plan.BaseCost, 100*(plan.Overhead-plan.Gap), plan.Proof, plan.Solver, plan.Seconds)
	return nil
}

// unknown is how many ops run once for no reason but that nobody said that they may run again.
func unknown(p *planner.Problem) int {
	n := 0
	for i := range p.Ops {
		if p.Ops[i].Det == planner.DetUnknown && p.Ops[i].Effect == planner.EffectNone {
			n++
		}
	}
	return n
}

// graphCurve plans a graph file at n budgets; -o FILE.html draws the curve.
func (a *app) graphCurve(cmd *cobra.Command, path, out string, n int) error {
	g, err := readGraph(path)
	if err != nil {
		return err
	}
	c, err := planner.Pareto(cmd.Context(), g.Problem, n, g.FirstBackward, planner.Options{})
	if err != nil {
		return graphError(path, err)
	}
	if out != "" {
		var buf bytes.Buffer
		switch {
		case strings.HasSuffix(out, ".html"):
			err = c.WriteHTML(&buf)
		default:
			err = c.WriteJSON(&buf)
		}
		if err == nil {
			err = writeFile(out, buf.Bytes())
		}
		if err != nil {
			return err
		}
	}
	if a.json {
		return c.WriteJSON(a.out)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "BUDGET\tOF ALL\tOVERHEAD\tAT LEAST\tPROOF")
	for _, p := range c.Points {
		fmt.Fprintf(w, "%d\t%.0f %%\t%.3f %%\t%.3f %%\t%s\n", p.BudgetBytes, 100*float64(p.BudgetBytes)/float64(c.SaveAllBytes), 100*p.Overhead, 100*p.Bound, p.Proof)
	}
	return w.Flush()
}

func (a *app) checkCmd() *cobra.Command {
	var budget string
	cmd := &cobra.Command{
		Use:     "check GRAPH.json PLAN.json",
		Short:   "Replay a plan: is it legal, what are its peak and cost",
		Example: "  reprise check graph.json plan.json --budget 70%",
		Args:    args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, list []string) error {
			g, err := readGraph(list[0])
			if err != nil {
				return err
			}
			data, err := os.ReadFile(list[1])
			if err != nil {
				return diag.Unreadable(list[1], err)
			}
			plan, err := planner.ReadPlan(bytes.NewReader(data))
			if err != nil {
				return planError(list[1], err)
			}
			b, err := graphBudget(cmd, budget, g)
			if err != nil {
				return err
			}
			rep, err := planner.Check(g.Problem, plan, b)
			if err != nil {
				if a.json {
					e := diag.Errorf("check", "%s", plain(err))
					e.File = list[1]
					return e
				}
				fmt.Fprintln(a.out, plain(err))
				return exitStatus(1)
			}
			if a.json {
				a.print(map[string]any{"ok": true, "peak": rep.PeakBytes, "cost": rep.Cost, "recomputed": rep.Recomputed})
				return nil
			}
			fmt.Fprintf(a.out, "ok peak=%d cost=%d\n", rep.PeakBytes, rep.Cost)
			return nil
		},
	}
	cmd.Flags().StringVar(&budget, "budget", "", "a number in the file's unit, a percentage of its peak without recomputation, or min")
	return cmd
}
