package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/passes/policy"
)

// readPolicy is what --policy and --rule say; nil without either.
func (f *modelFlags) readPolicy() (*policy.Policy, error) {
	for _, r := range f.rules {
		if strings.TrimSpace(r) == "" { // as from a variable of the shell that is not set
			return nil, usageError{errors.New("--rule is given and empty")}
		}
	}
	if f.policy == "" && len(f.rules) == 0 {
		return nil, nil
	}
	p, err := policy.Load(f.policy)
	if err != nil {
		return nil, err
	}
	return p.With(f.rules...)
}

// readCosts is the table of --costs, nil without it.
func (f *modelFlags) readCosts() (*compile.CostTable, error) {
	if f.costs == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.costs)
	if err != nil {
		return nil, diag.Unreadable(f.costs, err).WithHint("give a JSON file of costs, or leave --costs out")
	}
	return compile.ReadCosts(f.costs, data)
}

func (f *modelFlags) registerPolicy(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.policy, "policy", "", "what is kept for the backward part: a named policy (reprise policies) or a `FILE` of rules")
	fl.StringArrayVar(&f.rules, "rule", nil, "a `LINE` of a policy, \"must save op=top_k layer=layers.*.router\"; may be repeated")
	fl.BoolVar(&f.allowUnmatched, "allow-unmatched", false, "a rule that matches nothing is a warning, not an error")
	fl.StringVar(&f.costs, "costs", "", "`FILE` of measured times of ops (JSON, see docs/planner.md), which the planner takes in the place of its estimates")
	_ = cmd.RegisterFlagCompletionFunc("policy", completePolicy)
}

func completePolicy(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, n := range policy.All() {
		names = append(names, n.Name)
	}
	return names, cobra.ShellCompDirectiveDefault
}

// ruled tells a person, beside the output, what the lines of a policy matched.
func (a *app) ruled(r compile.Report) {
	if r.Policy != nil && r.Policy.Active() && !a.json {
		fmt.Fprintf(a.err, "policy %s\n%s", r.Policy.Name, r.Policy)
	}
}

func (a *app) policiesCmd() *cobra.Command {
	return &cobra.Command{
		Use: "policies", Short: "The named policies, what they mean and where they are from",
		Example: "  reprise policies", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				type row struct {
					Name    string `json:"name"`
					Args    string `json:"args,omitempty"`
					From    string `json:"from"`
					Meaning string `json:"meaning"`
				}
				var rows []row
				for _, n := range policy.All() {
					rows = append(rows, row{n.Name, n.Args, n.From, n.Meaning})
				}
				a.print(rows)
				return nil
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tFROM\tMEANING")
			for _, n := range policy.All() {
				fmt.Fprintf(w, "%s\t%s\t%s\n", n.Usage(), n.From, n.Meaning)
			}
			return w.Flush()
		},
	}
}

// comparison prints a policy beside our plan.
func (a *app) comparison(c *compile.Comparison) {
	if a.json {
		a.print(c)
		return
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PLAN\tARENA\tOF ALL\tOVERHEAD\tAT LEAST\tRECOMPUTED")
	row := func(name string, p compile.Point) {
		fmt.Fprintf(w, "%s\t%s\t%.0f %%\t%.2f %%\t%.2f %%\t%d\n", name, compile.Bytes(p.ArenaBytes), 100*float64(p.ArenaBytes)/float64(c.SaveAllPeakBytes),
			100*p.Overhead, 100*(p.Overhead-p.Gap), p.Recomputed)
	}
	row("policy "+c.Policy, c.UnderPolicy)
	row("ours in these bytes", c.SameBytes)
	if c.SameOverhead != nil {
		row("ours in this time", *c.SameOverhead)
	}
	_ = w.Flush()
	fmt.Fprintf(a.out, "%s", c.Rules)
}
