package fuzz

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unsafe"

	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// Refused is a program that the compiler or the derivative pass says no to, with the reason.
type Refused struct{ Err error }

func (r *Refused) Error() string { return "refused: " + r.Err.Error() }
func (r *Refused) Unwrap() error { return r.Err }

// refusal tells a reason given to a person from a fault of ours.
func refusal(err error) error {
	var d *diag.Error
	if errors.As(err, &d) && d.Code != "error" && d.Code != "verify" && d.Code != "pass" && d.Code != "bug" {
		return &Refused{err}
	}
	return err
}

const (
	seed  = 11 // of data and keys
	steps = 2
)

// trace is what a run shows: for each step every result by name.
type trace []map[string]*tensor.Tensor

// inputs are those of a step: data, key and step number.
func inputs(f *ir.Func, step int) (map[string]*tensor.Tensor, error) {
	in := map[string]*tensor.Tensor{}
	for _, p := range f.Body.Params {
		switch p.Role() {
		case ir.RoleKey:
			in[p.Name] = tensor.Key(seed, uint32(step), 0)
		case ir.RoleStep:
			in[p.Name] = tensor.New(p.Type.DType, p.Type.Shape...)
			in[p.Name].SetBits(0, uint64(step))
		case ir.RoleInput:
			t, err := compile.SyntheticInput(p, seed, step)
			if err != nil {
				return nil, err
			}
			in[p.Name] = t
		}
	}
	return in, nil
}

// interpret runs m by the ops' reference semantics.
func interpret(m *ir.Module) (trace, error) {
	ref, err := compile.Reference(m)
	if err != nil {
		return nil, refusal(err)
	}
	step := ref.Func("step")
	state := map[string]*tensor.Tensor{}
	if init := ref.Func("init"); init != nil {
		in := map[string]*tensor.Tensor{}
		for _, p := range init.Body.Params {
			in[p.Name] = tensor.Key(seed, exe.InitStep, 0)
		}
		if state, err = interp.RunNamed(init, in, interp.Options{}); err != nil {
			return nil, err
		}
	}
	var tr trace
	for s := range steps {
		in, err := inputs(step, s)
		if err != nil {
			return nil, err
		}
		for _, p := range step.Body.Params {
			if p.IsState() {
				in[p.Name] = state[p.Name]
			}
		}
		out, err := interp.RunNamed(step, in, interp.Options{})
		if err != nil {
			return nil, err
		}
		next := map[string]*tensor.Tensor{}
		for _, p := range step.Body.Params {
			if p.IsState() {
				next[p.Name] = state[p.Name]
				if t := out[p.Name]; t != nil {
					next[p.Name] = t
				}
				out[p.Name] = next[p.Name]
			}
		}
		state = next
		tr = append(tr, out)
	}
	return tr, nil
}

// guard is the memory past an arena in which nothing may be written.
const guard = 4096

// execute runs a library in an arena that was filled with rubbish.
func execute(lib string, m *ir.Module, threads int) (tr trace, err error) {
	l, err := runtime.Open(lib)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	n := l.Description.ArenaBytes
	mem := make([]byte, n+guard+64)
	off := (64 - int64(uintptr(unsafe.Pointer(&mem[0]))%64)) % 64
	arena := mem[off : off+n+guard]
	for i := range arena {
		arena[i] = 0xa5
	}
	i, err := l.Create(runtime.Options{Seed: seed, Threads: threads, Arena: arena[:n:n]})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	step := m.Func("step")
	for s := range steps {
		in, err := inputs(step, s)
		if err != nil {
			return nil, err
		}
		for _, p := range step.Body.Params {
			if p.Role() == ir.RoleInput {
				if err := i.Bind(p.Name, in[p.Name].Data); err != nil {
					return nil, err
				}
			}
		}
		if err := i.Step(); err != nil {
			return nil, err
		}
		out := map[string]*tensor.Tensor{}
		read := func(name string, t ir.Type) error {
			data, err := i.Read(name)
			out[name] = &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: data}
			return err
		}
		for k, name := range step.Results {
			if err := read(name, step.Body.Results[k].Type); err != nil {
				return nil, err
			}
		}
		for _, p := range step.Body.Params {
			if p.IsState() {
				if err := read(p.Name, p.Type); err != nil {
					return nil, err
				}
			}
		}
		tr = append(tr, out)
	}
	for k, b := range arena[n:] {
		if b != 0xa5 {
			return nil, fmt.Errorf("byte %d past an arena of %d was written", k, n)
		}
	}
	return tr, nil
}

// isNaN reports whether element i is no number.
func isNaN(t *tensor.Tensor, i int64) bool {
	b := t.Bits(i)
	switch t.DType {
	case dtype.F16:
		return b&0x7c00 == 0x7c00 && b&0x3ff != 0
	case dtype.BF16, dtype.F32, dtype.F64:
		return math.IsNaN(t.Float(i))
	}
	return false
}

// differ describes the first difference of two runs. Which NaN an operation on NaNs gives is up to the
// processor's order of operands: any two are equal, unless strict.
func differ(want, got trace, f *ir.Func, strict bool) error {
	for s := range want {
		for _, name := range resultNames(f) {
			x, y := want[s][name], got[s][name]
			if x.DType == dtype.Key || string(x.Data) == string(y.Data) {
				continue
			}
			n, first := 0, int64(-1)
			for i := range x.Len() {
				if x.Bits(i) != y.Bits(i) && (strict || !isNaN(x, i) || !isNaN(y, i)) {
					n++
					if first < 0 {
						first = i
					}
				}
			}
			if n > 0 {
				return fmt.Errorf("step %d: %s, %d of %d elements of %v differ, the first at %d: %#x (%g), want %#x (%g)", s, name, n, x.Len(),
					ir.T(x.DType, x.Shape...), first, y.Bits(first), y.Float(first), x.Bits(first), x.Float(first))
			}
		}
	}
	return nil
}

func resultNames(f *ir.Func) []string {
	names := append([]string{}, f.Results...)
	for _, p := range f.Body.Params {
		if p.IsState() && f.Result(p.Name) == nil {
			names = append(names, p.Name)
		}
	}
	return names
}

// Checker compiles programs and compares.
type Checker struct {
	Drivers *exe.Drivers
	Dir     string
	Targets []string // that this machine runs
	n       int
}

func model(m *ir.Module) *frontend.Model {
	return &frontend.Model{Name: "fuzz", Spec: "fuzz", Module: m}
}

// roundTrip prints and parses.
func roundTrip(m *ir.Module) error {
	text := m.String()
	p, err := ir.Parse(ops.Table(), "fuzz.ir", text)
	if err != nil {
		return fmt.Errorf("its own text does not parse: %w", err)
	}
	if again := p.String(); again != text {
		return fmt.Errorf("another text after a round trip:\n%s", again)
	}
	return nil
}

// budgets finds the programs of m at the smallest budget, at some between, and without a limit.
func budgets(ctx context.Context, m *frontend.Model, r *rand.Rand, n int) ([]compile.Budget, error) {
	p, err := compile.Plan(ctx, m, compile.Options{Budget: compile.Budget{Min: true}})
	if err != nil {
		return nil, refusal(err)
	}
	lo, hi := p.Report.MinBudgetBytes, p.Report.SaveAllPeakBytes
	if lo > hi {
		return nil, fmt.Errorf("the smallest budget is %d, more than %d that keeping everything takes", lo, hi)
	}
	out := []compile.Budget{{}, {Bytes: lo}}
	for range n {
		if hi > lo {
			out = append(out, compile.Budget{Bytes: lo + r.Int64N(hi-lo)})
		}
	}
	return out, nil
}

// Check compiles m without a limit and at a few budgets, runs all of them, and compares their results
// with the interpreter's. A *Refused is no fault.
func (c *Checker) Check(ctx context.Context, m *ir.Module, r *rand.Rand) error {
	before := m.String()
	if err := roundTrip(m); err != nil {
		return err
	}
	want, err := interpret(m)
	if err != nil {
		return err
	}
	fm := model(m)
	bs, err := budgets(ctx, fm, r, r.IntN(2))
	if err != nil {
		return err
	}
	same := map[string]trace{}
	for k, b := range bs {
		target := c.Targets[(k+int(r.Uint32()))%len(c.Targets)]
		c.n++
		lib := filepath.Join(c.Dir, fmt.Sprintf("m%d.so", c.n))
		p, err := compile.Make(ctx, fm, compile.Options{Target: target, Budget: b, NoMinimum: true, Shared: true, Drivers: c.Drivers}, lib)
		if err != nil {
			return fmt.Errorf("at budget %d: %w", b.Bytes, refusal(err))
		}
		if b.Bytes > 0 && p.Report.ArenaBytes > b.Bytes {
			return fmt.Errorf("budget %d, arena %d", b.Bytes, p.Report.ArenaBytes)
		}
		if err := p.ProveOnce(); err != nil {
			return err
		}
		got, err := execute(lib, m, 1+(k+r.IntN(3))%3)
		os.Remove(lib)
		os.Remove(exe.HeaderPath(lib))
		if err != nil {
			return fmt.Errorf("at budget %d on %s: %w", b.Bytes, target, err)
		}
		if err := differ(want, got, m.Func("step"), false); err != nil {
			return fmt.Errorf("at budget %d on %s against the interpreter: %w", b.Bytes, target, err)
		}
		if first, ok := same[target]; ok {
			if err := differ(first, got, m.Func("step"), true); err != nil {
				return fmt.Errorf("at budget %d on %s against another budget: %w", b.Bytes, target, err)
			}
		}
		same[target] = got
	}
	if m.String() != before {
		return errors.New("compilation changed its input")
	}
	return nil
}
