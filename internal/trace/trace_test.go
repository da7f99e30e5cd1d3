package trace_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/debug"
	"reprise/internal/diag"
	"reprise/internal/testprog"
	"reprise/internal/trace"
	"reprise/ir"
	"reprise/passes/remat"
	"reprise/runtime/exe"
)

var lab = testprog.New(100)

func TestMain(m *testing.M) { lab.Main(m) }

func load(t testing.TB, spec string) *frontend.Model {
	t.Helper()
	if _, err := exe.Toolchain(); err != nil {
		t.Skipf("compiled models need a C compiler: %v", err)
	}
	return testprog.Load(t, spec, true)
}

// program compiles m to a library.
func program(m *frontend.Model, b compile.Budget, d debug.Options) (trace.Side, error) {
	p, err := lab.Try(m, compile.Options{Budget: b, Debug: d})
	if err != nil {
		return trace.Side{}, err
	}
	return trace.Side{Library: p.Library, Program: p.Program}, nil
}

func must(t testing.TB, m *frontend.Model, b compile.Budget, d debug.Options) trace.Side {
	t.Helper()
	s, err := program(m, b, d)
	require.NoError(t, err)
	return s
}

func compare(t testing.TB, m *frontend.Model, planned, all trace.Side, steps int) (*trace.Result, string) {
	t.Helper()
	var file strings.Builder
	r, err := trace.Compare(m, planned, all, trace.Options{Seed: 3, Steps: steps, Threads: 2, File: &file})
	require.NoError(t, err)
	return r, file.String()
}

// scene is a model with both of its programs, sound.
type scene struct {
	m            *frontend.Model
	planned, all trace.Side
	tight        compile.Budget // of planned: a little more than the least
}

func newScene(t testing.TB, spec string) *scene {
	s := &scene{m: load(t, spec)}
	s.all = must(t, s.m, compile.Budget{}, debug.Options{})
	p, err := compile.Plan(context.Background(), s.m, compile.Options{Budget: compile.Budget{Min: true}, PlanSteps: 100})
	require.NoError(t, err)
	s.tight = compile.Budget{Bytes: p.Report.MinBudgetBytes + (s.all.Program.Report.ArenaBytes-p.Report.MinBudgetBytes)/10}
	s.planned = must(t, s.m, s.tight, debug.Options{})
	return s
}

// recomputed finds an op that the plan runs again, in a layer, for which ok holds.
func (s *scene) recomputed(t testing.TB, layer string, ok func(r *compile.Run) bool) *compile.Run {
	t.Helper()
	for i := range s.planned.Program.Runs {
		r := &s.planned.Program.Runs[i]
		if r.Clone > 0 && r.Sub == 0 && strings.HasPrefix(r.Layer, layer) && (ok == nil || ok(r)) {
			return r
		}
	}
	t.Fatalf("nothing of layer %q is recomputed", layer)
	return nil
}

// has tells whether a run holds an op of that name.
func has(r *compile.Run, name string) bool {
	if r.IR.Name() == name {
		return true
	}
	for _, b := range r.IR.Regions {
		for _, o := range b.Ops {
			if o.Name() == name {
				return true
			}
		}
	}
	return false
}

// own tells whether a run holds an op of that name that is of the run's own layer.
func own(r *compile.Run, name string) bool {
	for _, b := range r.IR.Regions {
		for _, o := range b.Ops {
			if o.Name() == name && o.Loc.Layer == r.Layer {
				return true
			}
		}
	}
	return r.IR.Name() == name
}

// sums tells whether a run has a sum of floating numbers, and writes over nothing that it reads: in another order it would
// read what it has written, and the proof of memory would say so first.
func sums(r *compile.Run) bool {
	for _, v := range r.IR.Operands {
		if v.Type.Bytes() == r.IR.Out(0).Bytes() {
			return false
		}
	}
	for _, b := range r.IR.Regions {
		for _, o := range b.Ops {
			if o.Name() == "reduce" && o.Attrs.Str("kind") == "sum" && o.Out(0).DType.IsFloat() {
				return true
			}
		}
	}
	return false
}

const moe = "builtin:moe,layers=4,d=24,heads=2,seq=12,batch=2,vocab=30,hidden=20,experts=4,dropout=0.2"

// TestSoundProgramsAgree: programs without a fault have no divergence; every op runs as often as planned, and
// the trace's file has every value once.
func TestSoundProgramsAgree(t *testing.T) {
	s := newScene(t, "builtin:cnn,size=8,width=4,batch=2,dropout=0.2")
	r, file := compare(t, s.m, s.planned, s.all, 2)
	require.Nil(t, r.Divergence)
	require.Equal(t, 2, r.Steps)
	require.Positive(t, r.Clones)
	require.Positive(t, r.Reads)
	require.NoError(t, trace.CheckCounts(r.Counts))
	lines := strings.Split(strings.TrimSpace(file), "\n")
	require.Len(t, lines, 2+int(r.Values))
	for _, l := range lines[2:] {
		require.Equal(t, "=", strings.Fields(l)[7], l)
	}
}

// TestOpsOfRegions: ops in loops and branches are aligned turn by turn, in every clone of the op around them, and
// counted: a loop's body as often as it turns.
func TestOpsOfRegions(t *testing.T) {
	m, err := frontend.Load("testdata/control.ir", frontend.Options{})
	require.NoError(t, err)
	if _, err := exe.Toolchain(); err != nil {
		t.Skipf("compiled models need a C compiler: %v", err)
	}
	const steps, turns = 3, 4
	r, file := compare(t, m, must(t, m, compile.Budget{Min: true}, debug.Options{}), must(t, m, compile.Budget{}, debug.Options{}), steps)
	require.Nil(t, r.Divergence)
	require.NoError(t, trace.CheckCounts(r.Counts))
	again := false
	for _, c := range r.Counts {
		switch {
		case strings.HasPrefix(c.Name, "loop.cond"):
			require.EqualValues(t, steps*(turns+1), c.Forward)
		case strings.HasPrefix(c.Name, "loop.body"):
			require.EqualValues(t, steps*turns, c.Forward)
		}
		again = again || c.Recomputed > 0 && c.Sub > 0
	}
	require.True(t, again, "nothing in a region runs again")
	require.Contains(t, file, "loop.body.act2:contract+tanh")
}

// message checks what every report must have: at most forty lines, layer, op and both hashes.
func message(t testing.TB, d *trace.Divergence) string {
	t.Helper()
	text := d.Error()
	require.LessOrEqual(t, strings.Count(text, "\n")+1, 40, text)
	for _, want := range []string{"layer " + d.Layer, d.Kernel, "counts     planned", "--trace-file"} {
		require.Contains(t, text, want)
	}
	if d.PlannedHash != "" {
		require.Contains(t, text, d.PlannedHash)
	}
	return text
}

// named requires that a report names a run.
func named(t testing.TB, r *compile.Run, d *trace.Divergence, kind string) {
	t.Helper()
	require.NotNil(t, d, "not found")
	require.Equal(t, kind, d.Kind, d.Error())
	require.Equal(t, []any{r.ID, r.Clone, r.Layer}, []any{d.ID, d.Clone, d.Layer}, d.Error())
}

// structural requires that the proofs of the final program name a run before anything is executed.
func (s *scene) structural(t testing.TB, r *compile.Run, code string, fs ...debug.Fault) {
	t.Helper()
	_, err := program(s.m, s.tight, debug.Options{Faults: fs})
	require.Error(t, err)
	e := diag.As(err)
	require.Equal(t, code, e.Code, err.Error())
	require.Equal(t, r.Layer, e.Layer, err.Error())
}

// TestFaultsAreFoundAndNamed: each kind of fault in a clone of an inner layer is found, by the proofs of the
// final program where it shows in its structure, otherwise by the trace, and the report names that op
// rather than what follows from it.
func TestFaultsAreFoundAndNamed(t *testing.T) {
	t.Parallel()
	s := newScene(t, moe)
	unproven := func(fs ...debug.Fault) trace.Side {
		return must(t, s.m, s.tight, debug.Options{Faults: fs, Unproven: true})
	}
	t.Run("a bit of one clone flips", func(t *testing.T) {
		r := s.recomputed(t, "layers.2", func(r *compile.Run) bool { return r.IR.Out(0).DType.IsFloat() && r.IR.Out(0).Rank() > 1 })
		f := debug.Fault{Kind: debug.FlipBit, ID: r.ID, Clone: r.Clone, Element: 5}
		s.structural(t, r, "kernel", f)
		res, file := compare(t, s.m, unproven(f), s.all, 3)
		d := res.Divergence
		named(t, r, d, trace.KindClone)
		require.Equal(t, 1, d.Step)
		require.EqualValues(t, 1, d.Difference.Differ)
		require.EqualValues(t, 1, *d.Difference.MaxULP)
		require.Equal(t, d.OtherHash, d.FirstHash)
		require.NotEmpty(t, d.Chain)
		require.Contains(t, message(t, d), "at most 1 ULP")
		require.Contains(t, file, "CLONE-DIFFERS")
		require.Positive(t, d.Planned)
		require.Equal(t, d.Planned, d.Executed)
	})
	t.Run("P010 a clone draws other random numbers", func(t *testing.T) {
		r := s.recomputed(t, "", func(r *compile.Run) bool { return own(r, "dropout") })
		f := debug.Fault{Kind: debug.Reseed, ID: r.ID, Clone: r.Clone}
		s.structural(t, r, "pinned", f)
		res, _ := compare(t, s.m, unproven(f), s.all, 1)
		named(t, r, res.Divergence, trace.KindClone)
		message(t, res.Divergence)
	})
	t.Run("a clone adds in another order", func(t *testing.T) {
		// Some sums round to the same bits in both orders; those of the first step tell which don't.
		seen := map[int]bool{}
		for range 4 {
			r := s.recomputed(t, "", func(r *compile.Run) bool { return sums(r) && !seen[r.ID] })
			seen[r.ID] = true
			f := debug.Fault{Kind: debug.Reorder, ID: r.ID, Clone: r.Clone}
			s.structural(t, r, "kernel", f)
			if res, _ := compare(t, s.m, unproven(f), s.all, 1); res.Divergence != nil {
				named(t, r, res.Divergence, trace.KindClone)
				message(t, res.Divergence)
				return
			}
		}
		t.Fatal("no clone's sum in another order was found")
	})
	t.Run("P023 a clone runs another kernel variant", func(t *testing.T) {
		r := s.recomputed(t, "layers.1", func(r *compile.Run) bool {
			return r.IR.Name() == "fused" && r.IR.Out(0).DType.IsFloat() && !has(r, "contract")
		})
		f := debug.Fault{Kind: debug.Variant, ID: r.ID, Clone: r.Clone}
		s.structural(t, r, "kernel", f)
		res, _ := compare(t, s.m, unproven(f), s.all, 1)
		require.Nil(t, res.Divergence, "this variant has the same bits: only the proof can tell")
	})
	t.Run("a state op runs twice", func(t *testing.T) {
		i := slices.IndexFunc(s.planned.Program.Runs, func(r compile.Run) bool {
			return r.Sub == 0 && slices.Contains(s.stateWriters(), r.ID)
		})
		require.GreaterOrEqual(t, i, 0)
		r := &s.planned.Program.Runs[i]
		f := debug.Fault{Kind: debug.Twice, ID: r.ID}
		s.structural(t, r, "kernel", f)
		res, _ := compare(t, s.m, unproven(f), s.all, 1)
		d := res.Divergence
		require.NotNil(t, d)
		require.Equal(t, []any{r.ID, r.Layer}, []any{d.ID, d.Layer}, d.Error())
		require.EqualValues(t, []int64{1, 2}, []int64{d.Planned, d.Executed})
		message(t, d)
	})
	t.Run("an op is left out", func(t *testing.T) {
		r := s.recomputed(t, "layers.0", nil)
		f := debug.Fault{Kind: debug.Drop, ID: r.ID, Clone: r.Clone}
		res, _ := compare(t, s.m, unproven(f), s.all, 1)
		require.NotNil(t, res.Divergence)
		text := message(t, res.Divergence)
		require.Contains(t, text, "reads an operand that is not what was written")
		require.Error(t, trace.CheckCounts(res.Counts))
	})
	t.Run("P024 P123 noise", func(t *testing.T) { testNoise(t, s) })
	t.Run("P025 a decision", func(t *testing.T) { testDecision(t, s) })
	t.Run("an operand is overwritten before it is read", func(t *testing.T) {
		r := s.recomputed(t, "layers.1", func(r *compile.Run) bool { return !r.Reads[0].Const && r.IR.Operands[0].Op != nil })
		f := debug.Fault{Kind: debug.Clobber, ID: r.ID, Clone: r.Clone}
		res, _ := compare(t, s.m, unproven(f), s.all, 1)
		named(t, r, res.Divergence, trace.KindMemory)
		require.Contains(t, message(t, res.Divergence), "wrote over it")
	})
}

// stateWriters are the ids of ops that write a state's new value over the old one.
func (s *scene) stateWriters() []int {
	p := s.planned.Program
	var ids []int
	for _, r := range p.Runs {
		for _, w := range r.Writes {
			for _, v := range p.Exe.Values {
				if v.Role.IsState() && v.Bytes > 0 && v.Offset == w.Offset && !w.Const {
					ids = append(ids, r.ID)
				}
			}
		}
	}
	return ids
}

// noise compares programs of which the op has noise in it.
func (s *scene) noise(t testing.TB, r *compile.Run, both bool) (*trace.Divergence, string) {
	d := debug.Options{Faults: []debug.Fault{{Kind: debug.Noise, ID: r.ID, Element: 7}}, Unproven: true}
	all := s.all
	if both {
		all = must(t, s.m, compile.Budget{}, d)
	}
	res, file := compare(t, s.m, must(t, s.m, s.tight, d), all, 3)
	require.NotNil(t, res.Divergence)
	return res.Divergence, file
}

// testNoise: a noisy attention in layer 2 of a model with routing is the first divergent op of the report, not the
// split sizes that follow from it (P024); shapes are equal, so that only values tell (P123), and the report says
// what it was computed from, and whether the value is an index (P025).
func testNoise(t *testing.T, s *scene) {
	var attn *compile.Run
	for i := range s.all.Program.Runs {
		if r := &s.all.Program.Runs[i]; has(r, "attention") && strings.HasPrefix(r.Layer, "layers.2") {
			attn = r
			break
		}
	}
	require.NotNil(t, attn)
	d, file := s.noise(t, attn, false)
	require.Equal(t, []any{attn.ID, "attention", trace.KindValue}, []any{d.ID, d.Kernel, d.Kind})
	require.True(t, strings.HasPrefix(d.Layer, "layers.2.attn"), d.Layer)
	require.False(t, d.Decision)
	text := message(t, d)
	for _, want := range []string{"layer layers.2.attn", "attention: the first run is the first op that writes other bits", "nearest saved values", "at most 1 ULP", "an ordinary value"} {
		require.Contains(t, text, want)
	}
	require.Greater(t, strings.Count(file, "\n"), 40, "the whole trace is in the file")
	// With noise in both programs it is the recomputation that differs.
	again := s.recomputed(t, "layers.2", func(r *compile.Run) bool { return r.IR.Out(0).DType.IsFloat() && r.IR.Out(0).Rank() > 1 })
	d, _ = s.noise(t, again, true)
	named(t, again, d, trace.KindClone)
	require.Contains(t, message(t, d), "its first run in the same step wrote those of the program that keeps everything")
}

// testDecision: a router whose choice differs is reported as a decision (P025).
func testDecision(t *testing.T, s *scene) {
	i := slices.IndexFunc(s.planned.Program.Runs, func(r compile.Run) bool { return r.Sub == 0 && remat.Det(r.IR) == ir.Decides })
	require.GreaterOrEqual(t, i, 0)
	r := &s.planned.Program.Runs[i]
	k := slices.IndexFunc(r.IR.Results, func(v *ir.Value) bool { return v.Type.DType.IsInt() })
	require.GreaterOrEqual(t, k, 0)
	f := debug.Fault{Kind: debug.FlipBit, ID: r.ID, Result: k}
	res, _ := compare(t, s.m, must(t, s.m, s.tight, debug.Options{Faults: []debug.Fault{f}, Unproven: true}), s.all, 1)
	named(t, r, res.Divergence, trace.KindValue)
	require.True(t, res.Divergence.Decision)
	require.Contains(t, message(t, res.Divergence), "an index or a decision")
}
