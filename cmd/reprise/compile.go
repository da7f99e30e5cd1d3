package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/runtime/exe"
)

func (a *app) compileCmd() *cobra.Command {
	var f modelFlags
	var out, math string
	var shared bool
	var emit []string
	cmd := &cobra.Command{
		Use:   "compile MODEL -o OUT",
		Short: "Compile a model to an executable, or with --shared to a library",
		Example: `  reprise compile builtin:gpt --train --budget 50% -o gpt
  reprise compile builtin:mlp -o mlp --shared
  reprise compile model.ir --target cpu:x86-64-v3 -o out/model --emit ir,llvm`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			if out == "" {
				return usageError{fmt.Errorf("compile: -o OUT is missing")}
			}
			if cmd.Flags().Changed("emit") && len(emit) == 0 {
				return usageError{fmt.Errorf("--emit is given and empty: want some of %s", emits)}
			}
			if math != "" && math != "exact" {
				return diag.Errorf("math", "no numeric variant %q on this target", math).WithHint("leave --math out: the default is exact, the same bits everywhere")
			}
			_, err := a.build(cmd.Context(), list[0], &f, out, shared, emit)
			return err
		},
	}
	f.register(cmd, true)
	fl := cmd.Flags()
	fl.StringVarP(&out, "output", "o", "", "the file to write")
	fl.BoolVar(&shared, "shared", false, "a shared library OUT.so and its header OUT.h")
	fl.StringVar(&math, "math", "", "numeric variant; only exact exists on the CPU")
	fl.StringSliceVar(&emit, "emit", nil, "also write OUT.ir, OUT.kern, OUT.N.ll, OUT.ptx, OUT.plan.json, a graph or every pass: ir,kern,llvm,ptx,plan,dot=DIR,passes=DIR")
	return cmd
}

// build compiles and links, writes what is asked for beside, and prints the report.
func (a *app) build(ctx context.Context, arg string, f *modelFlags, out string, shared bool, emit []string) (*compile.Program, error) {
	opt, err := f.options()
	if err != nil {
		return nil, err
	}
	m, err := f.load(arg)
	if err != nil {
		return nil, err
	}
	if f.temporary {
		beside(&opt, m)
	}
	extra, err := parseEmit(emit, &opt)
	if err != nil {
		return nil, err
	}
	if err := spare(arg, out, extra, shared); err != nil {
		return nil, err
	}
	say, done := a.progress()
	opt.Progress = say
	opt.Shared = shared
	p, err := a.make(ctx, m, opt, out)
	done()
	if err != nil {
		return nil, err
	}
	if err := extra.write(ctx, p, out); err != nil {
		return nil, err
	}
	a.warn(p.Report)
	if a.json {
		a.print(p.Report)
	} else {
		fmt.Fprint(a.out, summary(m, p.Report, out))
	}
	return p, nil
}

// summary is the report for a person.
func summary(m *frontend.Model, r compile.Report, out string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s for %s", m.Spec, r.Target)
	if out != "" {
		fmt.Fprintf(&b, " -> %s (%s)", out, compile.Bytes(r.BinaryBytes))
	}
	fmt.Fprintf(&b, "\n  arena      %s (%d bytes), all of it: state %s, the rest activations, gradients, workspace\n", compile.Bytes(r.ArenaBytes), r.ArenaBytes, compile.Bytes(r.ResidentBytes))
	for line := range strings.Lines(planLines(r)) {
		b.WriteString("  " + line)
	}
	if r.Policy != nil {
		fmt.Fprintf(&b, "  policy %s\n", r.Policy.Name)
		for line := range strings.Lines(r.Policy.String()) {
			b.WriteString("  " + line)
		}
	}
	fmt.Fprintf(&b, "  planned in %.1f s, compiled in %.1f s, of which checks %.2f s; %d kernels\n", r.PlanSeconds, r.CompileSeconds, r.CheckSeconds, r.Kernels)
	return b.String()
}

// planLines say what the plan gives and costs.
func planLines(r compile.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "peak %s (%d bytes) of a budget of %s (%d bytes); without recomputation it would be %s (%d bytes)", compile.Bytes(r.PromisedPeakBytes), r.PromisedPeakBytes,
		compile.Bytes(r.BudgetBytes), r.BudgetBytes, compile.Bytes(r.SaveAllPeakBytes), r.SaveAllPeakBytes)
	if r.MinBudgetBytes > 0 {
		fmt.Fprintf(&b, "; the least found is %s (%d bytes)", compile.Bytes(r.MinBudgetBytes), r.MinBudgetBytes)
	}
	fmt.Fprintf(&b, "\nmost is in memory at %s\n", peakPlace(r))
	fmt.Fprintf(&b, "recomputed %d of %d ops, %s or %.2f %% more time expected; no plan of these kernels in these bytes can do with less than %.2f %% (%s)\n",
		r.Recomputed, r.Ops, compile.Time(r.RecomputeNs), 100*r.Overhead, 100*(r.Overhead-r.Gap), r.Proof)
	return b.String()
}

// peakPlace is the schedule's position of the peak, and its op.
func peakPlace(r compile.Report) string {
	if r.PeakLayer == "" {
		return r.PeakOp
	}
	return fmt.Sprintf("op %d, %s", r.PeakPosition, r.PeakOp)
}

// spare is an error where what is to be written is the model's own file: with model.ir, -o model and --emit ir
// that is soon done.
func spare(model, out string, e *emitted, shared bool) error {
	is, err := os.Stat(model)
	if err != nil {
		return nil // a builtin
	}
	files := []string{out}
	if shared {
		files = []string{exe.LibraryPath(out), exe.HeaderPath(out)}
	}
	if e.ir {
		files = append(files, out+".ir")
	}
	if e.plan {
		files = append(files, out+".plan.json")
	}
	for _, f := range files {
		if s, err := os.Stat(f); err == nil && os.SameFile(is, s) {
			return diag.Errorf("file", "%s would be written over: it is the model", f).WithHint("give another name or directory to -o")
		}
	}
	return nil
}

// emitted are the texts to write beside a binary.
type emitted struct {
	ir, kern, llvm, ptx, plan bool

	dot string
}

// emits are the kinds of --emit.
const emits = "ir, kern, llvm, ptx, plan, dot=DIR, passes=DIR"

func parseEmit(list []string, opt *compile.Options) (*emitted, error) {
	e := &emitted{}
	for _, x := range list {
		name, dir, has := strings.Cut(x, "=")
		switch {
		case has && name != "dot" && name != "passes":
			return nil, usageError{fmt.Errorf("--emit %s: only dot and passes take a directory", x)}
		case name == "ir":
			e.ir = true
		case name == "kern":
			e.kern = true
		case name == "llvm":
			e.llvm = true
		case name == "ptx":
			e.ptx = true
		case name == "plan":
			e.plan = true
		case name == "dot" && dir != "":
			e.dot = dir
		case name == "passes" && dir != "":
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return nil, diag.Unwritable(dir, err)
			}
			n := 0
			opt.After = func(pass string, m *ir.Module) {
				n++
				_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d-%s.ir", n, strings.ReplaceAll(pass, "#", "-"))), []byte(m.String()), 0o666)
			}
		default:
			return nil, usageError{fmt.Errorf("--emit %q: want some of %s", x, emits)}
		}
	}
	opt.Keep = e.kern || e.llvm || e.ptx
	return e, nil
}

func (e *emitted) write(ctx context.Context, p *compile.Program, out string) error {
	put := func(name, text string) error { return writeFile(name, []byte(text)) }
	if e.ir {
		if err := put(out+".ir", p.Step.String()); err != nil {
			return err
		}
	}
	if e.kern {
		if err := put(out+".kern", strings.Join(p.KernText, "\n")); err != nil {
			return err
		}
	}
	if e.llvm {
		for i, text := range p.LLVM {
			if err := put(fmt.Sprintf("%s.%d.ll", out, i), text); err != nil {
				return err
			}
		}
	}
	if e.ptx {
		text, err := p.PTX(ctx)
		if err != nil {
			return diag.Errorf("ptx", "%v", err)
		}
		if err := put(out+".ptx", text); err != nil {
			return err
		}
	}
	if e.plan {
		text, err := p.PlanJSON()
		if err != nil {
			return err
		}
		if err := put(out+".plan.json", text); err != nil {
			return err
		}
	}
	if e.dot != "" {
		if err := os.MkdirAll(e.dot, 0o777); err != nil {
			return diag.Unwritable(e.dot, err)
		}
		return put(filepath.Join(e.dot, "step.dot"), p.Dot())
	}
	return nil
}
