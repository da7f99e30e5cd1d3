package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/internal/trace"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/tensor"
	"reprise/runtime"
)

// verdict is what verify found.
type verdict struct {
	Model       string `json:"model"`
	Budget      int64  `json:"budget_bytes"`
	Promised    int64  `json:"promised_peak_bytes"`
	Arena       int64  `json:"arena_bytes"`
	Steps       int    `json:"steps"`
	Values      int    `json:"values_compared"`
	Recomputed  int    `json:"recomputed"`
	Pinned      int    `json:"pinned"`
	Twice       int    `json:"pinned_run_twice"`
	Interpreted bool   `json:"interpreted"`
	// Once is what runs once: in the model, planned, executed in a step.
	Once   []compile.Count  `json:"once"`
	Probed []compile.Probed `json:"probe,omitempty"`
	// Counts are how often every op was to run, and ran; Trace is what --trace compared.
	Counts      []trace.Count `json:"counts"`
	Trace       *traced       `json:"trace,omitempty"`
	StateSHA256 string        `json:"state_sha256,omitempty"`
	OK          bool          `json:"ok"`
}

func (a *app) verifyCmd() *cobra.Command {
	var f modelFlags
	var steps, probe int
	var interpret string
	var seed uint64
	var infer, withTrace bool
	var traceFile string
	cmd := &cobra.Command{
		Use:   "verify MODEL",
		Short: "Show that the planned program computes the same bits as the one that keeps everything, and as the interpreter",
		Long: `Compiles the model at the budget and without a limit, runs both on the same data and
compares every output and every byte of state after each step. Without a budget and a
policy, the budget is min. Small models are run in
the reference interpreter too. Then it counts, on the final program, that nothing pinned
and nothing with an effect runs twice, and that every op ran as often as the plan says.

With --trace both programs run instruction by instruction: every value that an op writes
is compared with the other program's, a recomputed one with the original too, and the
first op that differs is reported with its layer, values and producers.`,
		Example: "  reprise verify builtin:gpt,layers=2,d=64,heads=2,seq=32,batch=2 --budget min",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, list []string) error {
			switch {
			case steps < 1 && (steps < 0 || probe == 0 || withTrace || traceFile != ""):
				return usageError{fmt.Errorf("verify: --steps %d: want at least 1, nothing is shown by less; or 0 with --probe, for the probe alone", steps)}
			case interpret != "auto" && interpret != "always" && interpret != "never":
				return usageError{fmt.Errorf("verify: --interpret %q: want auto, always or never", interpret)}
			case probe < 0:
				return usageError{fmt.Errorf("verify: --probe %d: want at least 0", probe)}
			}
			f.train = !infer
			if f.budget == "" && f.policy == "" && f.rules == nil { // a policy is verified as it is
				f.budget = "min"
			}
			opt, err := f.options()
			if err != nil {
				return err
			}
			m, err := f.load(list[0])
			if err != nil {
				return err
			}
			beside(&opt, m)
			file, err := createTrace(traceFile)
			if err != nil {
				return err
			}
			dir, clean, err := tempDir()
			if err != nil {
				return err
			}
			defer clean()
			say, done := a.progress()
			defer done()
			planned, err := a.shared(cmd, m, opt, filepath.Join(dir, "planned"), say)
			if err != nil {
				return err
			}
			opt.Budget, opt.Policy = compile.Budget{}, nil
			opt.NoMinimum = true
			all, err := a.shared(cmd, m, opt, filepath.Join(dir, "all"), say)
			if err != nil {
				return err
			}
			v := verdict{Model: m.Spec, Budget: planned.Report.BudgetBytes, Promised: planned.Report.PromisedPeakBytes, Arena: planned.Report.ArenaBytes, Steps: steps, Recomputed: planned.Report.Recomputed, Pinned: planned.Report.Pinned}
			if err := planned.ProveOnce(); err != nil {
				return err
			}
			withInterp := interpret == "always" || interpret == "auto" && compile.WorkOf(m.Module.Func("step"))*int64(steps) < 4e8
			v.Interpreted = withInterp
			say("run")
			if probe > 0 { // first: what a kernel that lies does to the comparison names neither it nor the lie
				say("probe")
				if v.Probed, err = planned.Probe(filepath.Join(dir, "planned.so"), probe, seed, func(p *ir.Value) ([]byte, error) {
					t, err := compile.SyntheticInput(p, seed, 0)
					if err != nil {
						return nil, err
					}
					return t.Data, nil
				}); err != nil {
					return err
				}
				if !a.json {
					a.probed(v.Probed)
				}
				for i := range v.Probed {
					if err := v.Probed[i].Error(); err != nil {
						return err
					}
				}
			}
			p := trace.Side{Library: filepath.Join(dir, "planned.so"), Program: planned}
			q := trace.Side{Library: filepath.Join(dir, "all.so"), Program: all}
			if withTrace || traceFile != "" {
				if v.Trace, err = runTrace(m, p, q, trace.Options{Seed: seed, Steps: steps}, file); err != nil {
					return err
				}
			}
			if steps > 0 {
				if err := compare(p, q, m, seed, steps, withInterp, &v); err != nil {
					return err
				}
			}
			v.Once = planned.Proof.Once
			done()
			a.warn(planned.Report)
			a.ruled(planned.Report)
			v.OK = true
			if steps == 0 && !a.json {
				return nil // the probe has been printed, and no bits were compared
			}
			if a.json {
				a.print(v)
				return nil
			}
			fmt.Fprintf(a.out, "same bits: %d values in each of %d steps, %s against keeping everything", v.Values, steps, compile.Bytes(planned.Report.ArenaBytes))
			if withInterp {
				fmt.Fprint(a.out, " and against the interpreter")
			}
			fmt.Fprintf(a.out, "\n%d ops run again, %d values pinned, none of them computed twice\n", v.Recomputed, v.Pinned)
			fmt.Fprintln(a.out, trace.Summary(v.Counts))
			if t := v.Trace; t != nil {
				fmt.Fprintf(a.out, "traced %d values written in %d steps, %d of them by recomputations; %d operands still had the bits that were written\n", t.Values, t.Steps, t.Clones, t.Reads)
			}
			for _, c := range v.Once {
				fmt.Fprintf(a.out, "  %-18s %-7s %d in the model, %d planned, %d executed in a step\n", c.Op, c.Why, c.Before, c.Planned, c.Executed)
			}
			if v.StateSHA256 != "" {
				fmt.Fprintf(a.out, "state after %d steps: %s\n", steps, v.StateSHA256)
			}
			return nil
		},
	}
	f.register(cmd, false)
	fl := cmd.Flags()
	fl.IntVar(&steps, "steps", 3, "steps to run; 0 with --probe: none")
	fl.IntVar(&probe, "probe", 0, "also run every kernel so many times on equal operands, in other orders and on other numbers of threads, and compare")
	fl.BoolVar(&infer, "infer", false, "verify an inference program: a builtin model's, or a module without a loss")
	fl.Uint64Var(&seed, "seed", 0, "seed")
	fl.BoolVar(&withTrace, "trace", false, "compare every value that an op writes, and name the first op that differs")
	fl.StringVar(&traceFile, "trace-file", "", "write both traces whole to this `FILE`, aligned by op; implies --trace")
	fl.StringVar(&interpret, "interpret", "auto", "compare with the interpreter: auto (small models), always or never")
	return cmd
}

func (a *app) shared(cmd *cobra.Command, m *frontend.Model, opt compile.Options, out string, say func(string)) (*compile.Program, error) {
	opt.Progress, opt.Shared = say, true
	return a.make(cmd.Context(), m, opt, out)
}

// compare runs the two libraries, and the interpreter, step by step on the same inputs.
func compare(planned, all trace.Side, m *frontend.Model, seed uint64, steps int, interpret bool, v *verdict) error {
	a, err := runtime.Load(planned.Library, runtime.Options{Seed: seed})
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := runtime.Load(all.Library, runtime.Options{Seed: seed})
	if err != nil {
		return err
	}
	defer b.Close()
	for _, i := range []*runtime.Instance{a, b} {
		if err := i.Count(); err != nil {
			return err
		}
	}
	ref, err := compile.Reference(m.Module)
	if err != nil {
		return err
	}
	step := ref.Func("step")
	var state map[string]*tensor.Tensor
	iopt, unload := compile.InterpOptions(m.Dir)
	defer unload()
	if interpret {
		if state, err = initialState(m, seed, iopt); err != nil {
			return err
		}
	}
	for s := range steps {
		in := map[string]*tensor.Tensor{}
		for _, p := range step.Body.Params {
			switch p.Role() {
			case ir.RoleKey:
				in[p.Name] = tensor.Key(seed, uint32(s), 0)
			case ir.RoleStep:
				t := tensor.New(p.Type.DType, p.Type.Shape...)
				t.SetBits(0, uint64(s))
				in[p.Name] = t
			case ir.RoleInput:
				t, err := compile.SyntheticInput(p, seed, s)
				if err != nil {
					return err
				}
				in[p.Name] = t
				for _, i := range []*runtime.Instance{a, b} {
					if err := i.Bind(p.Name, t.Data); err != nil {
						return err
					}
				}
			default:
				in[p.Name] = state[p.Name]
			}
		}
		if err := a.Step(); err != nil {
			return err
		}
		if err := b.Step(); err != nil {
			return err
		}
		var want map[string]*tensor.Tensor
		if interpret {
			if want, err = interp.RunNamed(step, in, iopt); err != nil {
				return err
			}
			for name, t := range want {
				if p := step.Param(name); p != nil && p.IsState() {
					state[name] = t
				}
			}
		}
		v.Values = 0
		for i, name := range step.Results {
			x, err := a.Read(name)
			if err != nil {
				return err
			}
			y, err := b.Read(name)
			if err != nil {
				return err
			}
			v.Values++
			layer := step.Body.Results[i].Name
			if op := step.Body.Results[i].Op; op != nil {
				layer = op.Loc.Layer
			}
			if d := difference(step.Body.Results[i].Type, x, y); d != "" {
				return mismatch(planned.Program, name, layer, s, "keeping everything", d)
			}
			if interpret {
				if d := difference(step.Body.Results[i].Type, x, want[name].Data); d != "" {
					return mismatch(planned.Program, name, layer, s, "the interpreter", d)
				}
			}
		}
	}
	x, err := a.Counts()
	if err != nil {
		return err
	}
	y, err := b.Counts()
	if err != nil {
		return err
	}
	v.Counts = trace.Counts(planned.Program, all.Program, x, y)
	if err := trace.CheckCounts(v.Counts); err != nil {
		return err
	}
	if err := planned.Program.Executed(x, steps); err != nil {
		return err
	}
	if m.Train {
		if v.StateSHA256, err = a.StateSHA256(); err != nil {
			return err
		}
	}
	return nil
}

// probed prints what the probe found: a line in all where every kernel is as it is declared, and one for each
// that gave several results or was not run.
func (a *app) probed(list []compile.Probed) {
	if len(list) == 0 {
		return
	}
	same := 0
	for _, k := range list {
		switch {
		case k.Skipped != "":
			fmt.Fprintf(a.out, "  %s in layer %s (%s): not probed, %s\n", k.Symbol, k.Layer, k.Op, k.Skipped)
		case k.Distinct > 1:
			fmt.Fprintf(a.out, "  %s%s in layer %s (%s), declared %s: %d different results\n", k.Symbol, k.Variant, k.Layer, k.Op, k.Determinism, k.Distinct)
		default:
			same++
		}
	}
	fmt.Fprintf(a.out, "probe: %d of %d kernels gave the same bits in each of %d runs\n", same, len(list), list[0].Runs)
}

func mismatch(p *compile.Program, name, layer string, step int, against, d string) error {
	for _, op := range p.Unfixed() {
		e := diag.Errorf("verify", "%s differs from %s in step %d: %s", name, against, step+1, d).
			WithHint("%s in layer %s is declared %s: two programs that run it need not give the same bits, whatever the plan", op.Name(), op.Loc.Layer, op.Det())
		e.Layer = layer
		return e
	}
	e := diag.Errorf("verify", "%s differs from %s in step %d: %s", name, against, step+1, d).
		WithHint("this must not happen: reprise verify --trace names the first op that differs; keep the model and report it with the output of reprise doctor")
	e.Layer = layer
	return e
}

// difference describes the first element in which two arrays differ, "" where none does.
func difference(t ir.Type, x, y []byte) string {
	if string(x) == string(y) {
		return ""
	}
	a := &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: x}
	b := &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: y}
	n, first := 0, int64(-1)
	for i := range a.Len() {
		if a.Bits(i) != b.Bits(i) {
			n++
			if first < 0 {
				first = i
			}
		}
	}
	s := fmt.Sprintf("%d of %d elements of %s, the first at %d: bits %x and %x", n, a.Len(), t, first, a.Bits(first), b.Bits(first))
	if t.DType == dtype.F32 {
		s += fmt.Sprintf(", %d ULP apart", ulps(uint32(a.Bits(first)), uint32(b.Bits(first))))
	}
	return s
}
