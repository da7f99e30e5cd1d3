// Package interp runs modules of the IR by the reference semantics of their ops: slow,
// obvious, and normative for every back end, bit for bit.
package interp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/tensor"
)

// Options of a run.
type Options struct {
	// Observe sees every value when it is made, in execution order: parameters of the
	// function, then each op's results; those of regions and called functions as often as
	// they run. Path names the regions and calls around it, outermost first, "" at the top.
	Observe func(path string, v *ir.Value, t *tensor.Tensor)
	// Foreign runs a foreign kernel (compile.ForeignKernels loads them); nil: they are refused.
	Foreign func(op *ir.Op, args []*tensor.Tensor) ([]*tensor.Tensor, error)
}

// Run runs f with args, one for each parameter, and returns its results. The tensors are
// not changed. The error names op and layer.
func Run(f *ir.Func, args []*tensor.Tensor) ([]*tensor.Tensor, error) {
	return RunWith(f, args, Options{})
}

// RunWith is Run with options.
func RunWith(f *ir.Func, args []*tensor.Tensor, o Options) ([]*tensor.Tensor, error) {
	m := &machine{module: f.Module, opts: o}
	return m.call(f, "", args)
}

// RunNamed runs f with parameters and results by name.
func RunNamed(f *ir.Func, args map[string]*tensor.Tensor, o Options) (map[string]*tensor.Tensor, error) {
	in := make([]*tensor.Tensor, len(f.Body.Params))
	for i, p := range f.Body.Params {
		if in[i] = args[p.Name]; in[i] == nil {
			return nil, diag.Errorf("interp", "@%s: no argument for parameter %q (%v)", f.Name, p.Name, p.Type)
		}
	}
	out, err := RunWith(f, in, o)
	if err != nil {
		return nil, err
	}
	named := make(map[string]*tensor.Tensor, len(out))
	for i, n := range f.Results {
		named[n] = out[i]
	}
	return named, nil
}

// maxDepth bounds the nesting of calls: the IR has no recursion.
const maxDepth = 1000

// machine is one run.
type machine struct {
	module *ir.Module
	opts   Options
	depth  int
}

// frame is the execution of a function at a path of regions and calls.
type frame struct {
	*machine
	path string
}

func (m *machine) call(f *ir.Func, path string, args []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if m.depth++; m.depth > maxDepth {
		return nil, diag.Errorf("interp", "@%s: calls nest deeper than %d", f.Name, maxDepth)
	}
	defer func() { m.depth-- }()
	out, err := frame{m, path}.Block(f.Body, args)
	if err != nil {
		e := *diag.As(err)
		if path == "" {
			e.Message = "@" + f.Name + ": " + e.Message
		}
		return nil, &e
	}
	return out, nil
}

// Call runs a function of the module.
func (f frame) Call(name string, args []*tensor.Tensor) ([]*tensor.Tensor, error) {
	fn := f.module.Func(name)
	if fn == nil {
		return nil, diag.Errorf("interp", "call of unknown function @%s", name)
	}
	return f.call(fn, f.path+"@"+name+"/", args)
}

// Foreign runs a foreign kernel by the option of that name.
func (f frame) Foreign(op *ir.Op, args []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if f.opts.Foreign == nil {
		return nil, fmt.Errorf("foreign kernel %q of library %q can't be interpreted: nobody gave the interpreter foreign kernels", op.Attrs.Str("symbol"), op.Attrs.Str("library"))
	}
	return f.opts.Foreign(op, args)
}

// Block runs a function's body or a region. Values die after their last use.
func (f frame) Block(b *ir.Block, args []*tensor.Tensor) ([]*tensor.Tensor, error) {
	if len(args) != len(b.Params) {
		return nil, diag.Errorf("interp", "%d arguments for %d parameters", len(args), len(b.Params))
	}
	vals := make(map[*ir.Value]*tensor.Tensor, len(b.Params)+len(b.Ops))
	set := func(v *ir.Value, t *tensor.Tensor) error {
		if t.DType != v.Type.DType || !slices.Equal(t.Shape, v.Type.Shape) {
			return fmt.Errorf("%%%s is %v, its type is %v", v.Name, ir.T(t.DType, t.Shape...), v.Type)
		}
		vals[v] = t
		if f.opts.Observe != nil {
			f.opts.Observe(f.path, v, t)
		}
		return nil
	}
	for i, p := range b.Params {
		if err := set(p, args[i]); err != nil {
			return nil, diag.Errorf("interp", "argument %d: %v", i, err)
		}
	}
	last := lastUses(b)
	for i, op := range b.Ops {
		if err := f.op(op, vals, set); err != nil {
			return nil, at(op, err)
		}
		for _, v := range last[i] {
			delete(vals, v)
		}
	}
	out := make([]*tensor.Tensor, len(b.Results))
	for i, v := range b.Results {
		out[i] = vals[v]
	}
	return out, nil
}

func (f frame) op(op *ir.Op, vals map[*ir.Value]*tensor.Tensor, set func(*ir.Value, *tensor.Tensor) error) error {
	if op.Def.Ref == nil {
		return fmt.Errorf("no reference semantics: %s", op.Def.HandScheduled)
	}
	in := make([]*tensor.Tensor, len(op.Operands))
	for k, v := range op.Operands {
		in[k] = vals[v]
	}
	inner := f
	if len(op.Regions) > 0 {
		inner.path += fmt.Sprintf("%s.%d/", op.Name(), op.ID)
	}
	out, err := op.Def.Ref(inner, op, in)
	if err != nil {
		return err
	}
	if len(out) != len(op.Results) {
		return fmt.Errorf("BUG: reference semantics gave %d results for %d", len(out), len(op.Results))
	}
	for k, v := range op.Results {
		if err := set(v, out[k]); err != nil {
			return err
		}
	}
	return nil
}

// lastUses lists, for each op, the values of the block that nothing reads after it.
func lastUses(b *ir.Block) [][]*ir.Value {
	out, seen := make([][]*ir.Value, len(b.Ops)), map[*ir.Value]bool{}
	for _, v := range b.Results {
		seen[v] = true
	}
	for i := len(b.Ops) - 1; i >= 0; i-- {
		for _, vs := range [][]*ir.Value{b.Ops[i].Operands, b.Ops[i].Results} {
			for _, v := range vs {
				if !seen[v] {
					seen[v] = true
					out[i] = append(out[i], v)
				}
			}
		}
	}
	return out
}

// at adds the place of op to an error that has none.
func at(op *ir.Op, err error) error {
	e := *diag.As(err)
	if e.Layer == "" && e.Op == "" {
		e.Layer, e.Op, e.File, e.Line = op.Loc.Layer, op.Name(), op.Loc.File, op.Loc.Line
	}
	if e.Code == "error" {
		e.Code = "interp"
	}
	return &e
}

// Hash is the first 16 hex digits of the SHA-256 of t's bytes: what traces compare.
func Hash(t *tensor.Tensor) string {
	h := sha256.Sum256(t.Data)
	return hex.EncodeToString(h[:8])
}

// Entry is a line of a trace.
type Entry struct {
	Path string    // regions and calls around, "" at the top
	V    *ir.Value // the value
	Hash string
}

// Trace runs f and returns its results with the hash of every value in execution order.
func Trace(f *ir.Func, args []*tensor.Tensor) ([]*tensor.Tensor, []Entry, error) {
	var trace []Entry
	out, err := RunWith(f, args, Options{Observe: func(path string, v *ir.Value, t *tensor.Tensor) {
		trace = append(trace, Entry{path, v, Hash(t)})
	}})
	return out, trace, err
}
