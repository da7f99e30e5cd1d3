package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"reprise/bench/exactness"
	"reprise/bench/kernels"
	plans "reprise/bench/planner"
	"reprise/bench/step"
	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/ops"
	"reprise/passes"
	"reprise/runtime/exe"
)

func (a *app) optCmd() *cobra.Command {
	var only []string
	var listPasses bool
	cmd := &cobra.Command{
		Use:   "opt FILE",
		Short: "Parse, verify, transform and print a module in the text form",
		Example: `  reprise opt model.ir
  reprise opt model.ir --passes canon,cse
  reprise opt --list`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(_ *cobra.Command, list []string) error {
			if listPasses && a.json {
				type row struct {
					Name string `json:"name"`
					Doc  string `json:"doc"`
				}
				type edge struct {
					Before string `json:"before"`
					After  string `json:"after"`
					Why    string `json:"why"`
				}
				var doc struct {
					Passes []row  `json:"passes"`
					Edges  []edge `json:"edges"`
				}
				for _, p := range passes.Table() {
					doc.Passes = append(doc.Passes, row{p.Name, p.Doc})
				}
				for _, e := range passes.Edges() {
					doc.Edges = append(doc.Edges, edge{e.Before, e.After, e.Why})
				}
				a.print(doc)
				return nil
			}
			if listPasses {
				for _, p := range passes.Table() {
					fmt.Fprintf(a.out, "%-10s %s\n", p.Name, p.Doc)
				}
				for _, e := range passes.Edges() {
					fmt.Fprintf(a.out, "%s before %s: %s\n", e.Before, e.After, e.Why)
				}
				return nil
			}
			if len(list) == 0 {
				return usageError{fmt.Errorf("opt: FILE is missing")}
			}
			var m *ir.Module
			if strings.HasPrefix(list[0], "builtin:") {
				f, err := frontend.Load(list[0], frontend.Options{Train: true})
				if err != nil {
					return err
				}
				m = f.Module
			} else {
				data, err := os.ReadFile(list[0])
				if err != nil {
					return diag.Unreadable(list[0], err)
				}
				if m, err = ir.Parse(ops.Table(), list[0], string(data)); err != nil {
					return err
				}
			}
			known := map[string]bool{}
			var names []string
			for _, p := range passes.Table() {
				known[p.Name] = true
				names = append(names, p.Name)
			}
			for _, n := range only {
				if !known[n] && n != "all" {
					return usageError{fmt.Errorf("unknown pass %q: passes are %s, all", n, strings.Join(names, ", "))}
				}
			}
			if len(only) > 0 {
				if slices.Contains(only, "all") {
					only = nil
				}
				if err := passes.Run(m, ops.Table(), passes.Options{Only: only}); err != nil {
					return reproducer(err)
				}
			}
			if a.json {
				a.print(map[string]any{"module": m.String()})
				return nil
			}
			fmt.Fprint(a.out, m.String())
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&only, "passes", nil, "run these passes, in the table's order")
	cmd.Flags().BoolVar(&listPasses, "list", false, "list the passes and why they stand in this order")
	return cmd
}

// reproducer writes what a failed pass was given, and says how to run it again.
func reproducer(err error) error {
	var f *passes.Failure
	if !errors.As(err, &f) {
		return err
	}
	name := filepath.Join(os.TempDir(), "reprise-"+strings.ReplaceAll(f.Pass, "#", "-")+".ir")
	if writeFile(name, []byte(f.Before)) != nil {
		return err
	}
	return diag.Errorf("pass", "%v", err).WithHint("this is a fault of reprise; to see it again: reprise opt %s --passes '%s'", name, f.Pass)
}

func (a *app) modelsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "models", Short: "List the builtin models, their sizes and their options", Example: "  reprise models", Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				type row struct {
					Name string `json:"name"`
					Help string `json:"help"`
				}
				var rows []row
				for _, b := range nn.Builtins() {
					text, err := b.Help()
					if err != nil {
						return err
					}
					rows = append(rows, row{b.Name, text})
				}
				a.print(rows)
				return nil
			}
			for i, b := range nn.Builtins() {
				if i > 0 {
					fmt.Fprintln(a.out)
				}
				text, err := b.Help()
				if err != nil {
					return err
				}
				fmt.Fprint(a.out, text)
			}
			return nil
		},
	}
}

func (a *app) benchCmd() *cobra.Command {
	var peers, resume bool
	var rounds int
	var configs, who, rows []string
	var dir string
	cmd := &cobra.Command{
		Use:   "bench [SUITE…]",
		Short: "Measure: step (training steps), kernels (contractions), planner, exactness, costs (what plans promise of time); with --peers against PyTorch and JAX in the same run",
		Example: `  bench/peers/setup.sh && reprise bench step --peers
  reprise bench kernels --peers
  reprise bench exactness --peers
  reprise bench planner --resume
  reprise bench costs --config moe --rounds 3
  reprise bench planner --row resnet50 --row "dtr/lstm 30 %"`,
		ValidArgs: []string{"step", "kernels", "planner", "exactness", "costs"},
		RunE: func(cmd *cobra.Command, list []string) error {
			if len(list) == 0 {
				list = []string{"kernels", "step"}
			}
			if rounds < 1 {
				return usageError{fmt.Errorf("bench: --rounds %d: want 1 or more", rounds)}
			}
			for _, suite := range list {
				if !slices.Contains(cmd.ValidArgs, suite) {
					return usageError{fmt.Errorf("unknown suite %q: suites are %s; a model or configuration is chosen with --config", suite, strings.Join(cmd.ValidArgs, ", "))}
				}
			}
			for _, suite := range list {
				switch suite {
				case "step":
					if err := a.benchStep(cmd.Context(), peers, who, rounds, configs, dir); err != nil {
						return err
					}
				case "kernels":
					if err := a.benchKernels(cmd.Context(), peers, dir); err != nil {
						return err
					}
				case "planner":
					if err := a.benchPlanner(cmd.Context(), dir, rows, resume); err != nil {
						return err
					}
				case "exactness":
					if err := a.benchExactness(cmd.Context(), peers, rows, dir); err != nil {
						return err
					}
				case "costs":
					if err := a.benchCosts(cmd.Context(), configs, rounds); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&peers, "peers", false, "measure the peers of bench/peers in turns with ours")
	fl.StringSliceVar(&who, "peer", nil, "with --peers, only these contestants of step: "+strings.Join(step.Peers(), ", "))
	fl.IntVar(&rounds, "rounds", 5, "turns of each contestant")
	fl.StringSliceVar(&configs, "config", nil, "only these configurations of step; of costs, these builtin models")
	fl.StringSliceVar(&rows, "row", nil, "only these rows of exactness (nothing is written): "+strings.Join(exactness.Names(), ", ")+"; of planner, those with this in \"suite/case budget\" anew, the others stay as they are in the results")
	fl.BoolVar(&resume, "resume", false, "of planner: the rows that the results lack; they are written row by row, so a run may be ended at any time")
	fl.StringVar(&dir, "dir", "bench", "the repository's bench directory")
	return cmd
}

func (a *app) benchStep(ctx context.Context, peers bool, who []string, rounds int, names []string, dir string) error {
	o := step.Options{Rounds: rounds, PeersDir: filepath.Join(dir, "peers"), Results: filepath.Join(dir, "results"), Log: a.err, Peers: []string{}}
	if peers {
		o.Peers = step.Peers()
		if len(who) > 0 {
			o.Peers = who
		}
	}
	for _, w := range who {
		if !slices.Contains(step.Peers(), w) {
			return usageError{fmt.Errorf("--peer %q: contestants are %s", w, strings.Join(step.Peers(), ", "))}
		}
	}
	for _, c := range step.Configs() {
		for _, n := range names {
			if c.Name == n {
				o.Configs = append(o.Configs, c)
			}
		}
	}
	if len(names) > 0 && len(o.Configs) != len(names) {
		var known []string
		for _, c := range step.Configs() {
			known = append(known, c.Name)
		}
		return usageError{fmt.Errorf("--config: configurations are %s", strings.Join(known, ", "))}
	}
	o.Compile = func(ctx context.Context, spec, budget, out string) error {
		f := modelFlags{budget: budget, target: "cpu", train: true}
		opt, err := f.options()
		if err != nil {
			return err
		}
		m, err := f.load(spec)
		if err != nil {
			return err
		}
		opt.NoMinimum = budget != "min"
		_, err = a.make(ctx, m, opt, out)
		return err
	}
	rep, err := step.Run(ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		a.print(rep)
	}
	return nil
}

func (a *app) benchExactness(ctx context.Context, peers bool, rows []string, dir string) error {
	o := exactness.Options{Peers: peers, PeersDir: filepath.Join(dir, "peers"), Only: rows, Log: a.err}
	if len(rows) == 0 {
		o.Results = filepath.Join(dir, "results")
	}
	rep, err := exactness.Run(ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		a.print(rep)
	} else {
		fmt.Fprint(a.out, rep.Markdown())
	}
	if !rep.Exact() {
		return diag.Errorf("verify", "one of our programs computed other bits").WithHint("this must not happen: report it with the output of reprise doctor")
	}
	return nil
}

func (a *app) benchKernels(ctx context.Context, peers bool, dir string) error {
	t, err := cpu.ParseTarget("cpu")
	if err != nil {
		return err
	}
	o := kernels.Options{Target: t, Out: a.out}
	if a.json {
		o.Out = nil
	}
	if peers {
		o.Python = filepath.Join(dir, "peers", ".venv", "bin", "python")
	}
	rep, err := kernels.Run(ctx, o)
	if err != nil {
		return err
	}
	if err := rep.Write(filepath.Join(dir, "results")); err != nil {
		return err
	}
	if a.json {
		a.print(rep)
	}
	return nil
}

// benchPlanner measures the planner and writes its results row by row. With rows, those are measured anew and the others
// stay; with resume, what the results lack is measured.
func (a *app) benchPlanner(ctx context.Context, dir string, rows []string, resume bool) error {
	data := plans.FindData(".")
	if data == "" {
		return diag.Errorf("data", "the planner's data is not beside the repository").
			WithHint("put shared/planner-data next to the clone")
	}
	file := filepath.Join(dir, "results", "planner.json")
	o := plans.Options{Data: data, Revision: revision(), Progress: func(line string) {
		if !a.json {
			fmt.Fprintln(a.out, line)
		}
	}, Save: func(t *plans.Table) error {
		for name, write := range map[string]func(io.Writer) error{file: t.WriteJSON, strings.TrimSuffix(file, "json") + "md": t.WriteMarkdown} {
			var buf bytes.Buffer
			if err := write(&buf); err != nil {
				return err
			}
			if err := writeFile(name, buf.Bytes()); err != nil {
				return err
			}
		}
		return nil
	}}
	if f, err := os.Open(file); err == nil && (resume || len(rows) > 0) {
		o.Before, err = plans.ReadTable(f)
		f.Close()
		if err != nil {
			return diag.Errorf("format", "%s: %v", file, err).WithHint("delete it, and everything is measured")
		}
	}
	only := []string{""}
	if len(rows) > 0 {
		only = rows
	}
	var t *plans.Table
	for _, row := range only {
		if row != "" && o.Before != nil {
			o.Before = o.Before.Without(row)
		}
		o.Only = row
		var err error
		if t, err = plans.Run(ctx, o); err != nil {
			return err
		}
		o.Before = t
	}
	if a.json {
		a.print(t)
	}
	return o.Save(t)
}

// revision is what this program was built from: a commit, with + where files had changed; "" where it was built without.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	id, mark := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			id = s.Value[:min(len(s.Value), 10)]
		case s.Key == "vcs.modified" && s.Value == "true":
			mark = "+"
		}
	}
	return id + mark
}

// finding is a line of doctor.
type finding struct {
	What string `json:"what"`
	OK   bool   `json:"ok"`
	Is   string `json:"is"`
	Hint string `json:"hint,omitempty"`
}

func (a *app) doctorCmd() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "What this machine has, what is missing and how to get it", Example: "  reprise doctor", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var fs []finding
			tool := func(name, need, hint string) {
				path, err := exec.LookPath(name)
				if err != nil {
					fs = append(fs, finding{name, false, "not found; " + need, hint})
					return
				}
				out, _ := exec.CommandContext(cmd.Context(), path, "--version").Output()
				line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
				fs = append(fs, finding{name, true, line, ""})
			}
			tool("clang-19", "it compiles every model", "apt-get install -y clang-19")
			tool("ld.lld-19", "it links every model", "apt-get install -y lld-19")
			tool("llc-19", "only --emit ptx needs it", "apt-get install -y llvm-19")
			if t, err := cpu.ParseTarget("cpu"); err != nil {
				fs = append(fs, finding{"processor", false, err.Error(), ""})
			} else {
				fs = append(fs, finding{"processor", true, fmt.Sprintf("%s, %d threads", t, runtime.NumCPU()), ""})
			}
			if _, err := os.Stat("/dev/nvidia0"); err != nil {
				fs = append(fs, finding{"gpu", true, "none; programs run on the CPU", ""})
			} else {
				fs = append(fs, finding{"gpu", true, "present; programs for it are not built yet", ""})
			}
			if _, err := exe.Toolchain(); err == nil {
				fs = append(fs, finding{"toolchain", true, "complete", ""})
			} else {
				fs = append(fs, finding{"toolchain", false, err.Error(), "apt-get install -y clang-19 lld-19 libc6-dev"})
			}
			bad := false
			for _, f := range fs {
				bad = bad || !f.OK && f.What != "llc-19"
				if !a.json {
					mark := "ok  "
					if !f.OK {
						mark = "MISS"
					}
					fmt.Fprintf(a.out, "%s  %-10s %s\n", mark, f.What, f.Is)
					if f.Hint != "" {
						fmt.Fprintf(a.out, "      %s\n", f.Hint)
					}
				}
			}
			if a.json {
				a.print(map[string]any{"ok": !bad, "findings": fs})
			}
			if bad {
				return exitStatus(1)
			}
			return nil
		},
	}
}
