// Package ir is the SSA form that models are compiled in: modules of functions
// over statically shaped tensors, with structured control flow (regions, no
// control-flow graph). Semantics of the ops live in ir/ops.
package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// Type is the type of a value: a dense tensor of static shape.
type Type struct {
	DType dtype.Type
	Shape []int64
}

// T makes a type.
func T(d dtype.Type, shape ...int64) Type { return Type{d, shape} }

// Len is the number of elements.
func (t Type) Len() int64 { return tensor.Len(t.Shape) }

// Bytes is the size in memory, unpadded.
func (t Type) Bytes() int64 { return t.Len() * t.DType.Size() }

// Rank is the number of dimensions.
func (t Type) Rank() int { return len(t.Shape) }

// Equal reports whether t and u are the same type.
func (t Type) Equal(u Type) bool { return t.DType == u.DType && slices.Equal(t.Shape, u.Shape) }

// With is t with another element type.
func (t Type) With(d dtype.Type) Type { return Type{d, t.Shape} }

// String is the text form, e.g. "f32[64,256]".
func (t Type) String() string {
	var b strings.Builder
	b.WriteString(t.DType.String())
	b.WriteByte('[')
	for i, d := range t.Shape {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%d", d)
	}
	b.WriteByte(']')
	return b.String()
}

// Loc says where an op comes from. Layer is mandatory.
type Loc struct {
	Layer string   // layer path, e.g. "layers.3.mlp.gate"
	File  string   // source file, or ""
	Line  int      // from 1
	Prov  []string // provenance, oldest first: "vjp", "remat", …
}

// With is l with one more provenance mark.
func (l Loc) With(prov string) Loc {
	l.Prov = append(slices.Clone(l.Prov), prov)
	return l
}

// String is the text form without "loc( )", e.g. `layers.3.mlp~vjp "m.py":7`.
func (l Loc) String() string {
	s := l.Layer
	if !isPath(s) {
		s = fmt.Sprintf("%q", s)
	}
	for _, p := range l.Prov {
		s += "~" + p
	}
	if l.File != "" {
		s += fmt.Sprintf(" %q:%d", l.File, l.Line)
	}
	return s
}

func isPath(s string) bool {
	for _, r := range s {
		if !isNameRune(r) {
			return false
		}
	}
	return s != ""
}

func isNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '$' || r == '/'
}

// Attr is a named attribute. Val is an int64, float64, bool, string, []int64,
// []string, dtype.Type or *tensor.Tensor.
type Attr struct {
	Name string
	Val  any
}

// Attrs is a list of attributes in the order of their names.
type Attrs []Attr

// MakeAttrs sorts attributes; Go ints and float32s are widened.
func MakeAttrs(as ...Attr) Attrs {
	out := make(Attrs, 0, len(as))
	for _, a := range as {
		out = out.Set(a.Name, a.Val)
	}
	return out
}

// A makes an attribute.
func A(name string, val any) Attr { return Attr{name, val} }

// Get finds an attribute, nil where there is none.
func (as Attrs) Get(name string) any {
	for i := range as {
		if as[i].Name == name {
			return as[i].Val
		}
	}
	return nil
}

// Set is as with name set to val, sharing nothing with as.
func (as Attrs) Set(name string, val any) Attrs {
	switch v := val.(type) {
	case int:
		val = int64(v)
	case uint32:
		val = int64(v)
	case float32:
		val = float64(v)
	case []int64:
		val = slices.Clone(v)
	case int64, float64, bool, string, []string, dtype.Type, *tensor.Tensor:
	default:
		panic(fmt.Sprintf("BUG: attribute %s of Go type %T", name, val))
	}
	out := slices.Clone(as)
	i, found := slices.BinarySearchFunc(out, name, func(a Attr, n string) int { return strings.Compare(a.Name, n) })
	if found {
		out[i].Val = val
		return out
	}
	return slices.Insert(out, i, Attr{name, val})
}

// Without is as without name.
func (as Attrs) Without(name string) Attrs {
	return slices.DeleteFunc(slices.Clone(as), func(a Attr) bool { return a.Name == name })
}

// Int is an integer attribute, 0 where absent.
func (as Attrs) Int(name string) int64 { v, _ := as.Get(name).(int64); return v }

// Float is a number attribute, 0 where absent.
func (as Attrs) Float(name string) float64 {
	switch v := as.Get(name).(type) {
	case float64:
		return v
	case int64:
		return float64(v)
	}
	return 0
}

// Ints is a list attribute, nil where absent.
func (as Attrs) Ints(name string) []int64 { v, _ := as.Get(name).([]int64); return v }

// Strs is a list attribute, nil where absent.
func (as Attrs) Strs(name string) []string { v, _ := as.Get(name).([]string); return v }

// Str is a string attribute, "" where absent.
func (as Attrs) Str(name string) string { v, _ := as.Get(name).(string); return v }

// Bool is a boolean attribute, false where absent.
func (as Attrs) Bool(name string) bool { v, _ := as.Get(name).(bool); return v }

// DType is an element-type attribute, Invalid where absent.
func (as Attrs) DType(name string) dtype.Type { v, _ := as.Get(name).(dtype.Type); return v }

// Tensor is a dense attribute, nil where absent.
func (as Attrs) Tensor(name string) *tensor.Tensor { v, _ := as.Get(name).(*tensor.Tensor); return v }

// Module is a set of functions. A trainable or runnable model has @step, and @init
// where it has state (see docs/ir.md, "What a model is").
type Module struct {
	Name  string
	Attrs Attrs // "stage": "planned" once planning was done; RecomputeAllowed
	Funcs []*Func
}

// RecomputeAllowed is the attribute of a planned module that lists the layers whose pinned ops a
// person allowed to run again.
const RecomputeAllowed = "recompute_allowed"

// Func finds a function by name, nil where there is none.
func (m *Module) Func(name string) *Func {
	for _, f := range m.Funcs {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Roles of a function's parameters in a model ("role" attribute).
const (
	RoleParam  = "param"  // trained
	RoleOpt    = "opt"    // optimizer state
	RoleBuffer = "buffer" // other state: running statistics, counters, caches
	RoleInput  = "input"  // data of the step
	RoleKey    = "key"    // generator key: seed and step
	RoleStep   = "step"   // i64 step number, from 0
)

// Func is a function. A result that has the name of a parameter of role param,
// opt or buffer is that parameter's new value.
type Func struct {
	Module  *Module
	Name    string
	Body    *Block   // its parameters are the function's
	Results []string // names of Body.Results, unique, no '%'

	numValues, numOps int
}

// NumValues bounds the ids of values: analyses are slices of this length.
func (f *Func) NumValues() int { return f.numValues }

// NumOps bounds the ids of ops.
func (f *Func) NumOps() int { return f.numOps }

// Param finds a parameter by name, nil where there is none.
func (f *Func) Param(name string) *Value {
	for _, p := range f.Body.Params {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// ParamsByName are the parameters by their names, for whoever looks for many.
func (f *Func) ParamsByName() map[string]*Value {
	out := make(map[string]*Value, len(f.Body.Params))
	for _, p := range f.Body.Params {
		out[p.Name] = p
	}
	return out
}

// Result finds a result by name, nil where there is none.
func (f *Func) Result(name string) *Value {
	if i := slices.Index(f.Results, name); i >= 0 {
		return f.Body.Results[i]
	}
	return nil
}

// Block is a straight list of ops: a function's body or a region of an op. Regions
// are isolated: they see their parameters and nothing else.
type Block struct {
	Func    *Func
	Owner   *Op // the op whose region this is, nil for a function's body
	Params  []*Value
	Ops     []*Op
	Results []*Value
}

// Op is one operation.
type Op struct {
	ID       int
	Def      *OpDef
	Block    *Block
	Operands []*Value
	Results  []*Value
	Attrs    Attrs
	Regions  []*Block
	Loc      Loc
	// Remat is the original of which this op is a recomputed clone; it is part of the
	// op's identity, so nothing merges a clone back.
	Remat *Op
}

// Name is the op's name, e.g. "matmul".
func (op *Op) Name() string { return op.Def.Name }

// In is the type of operand i.
func (op *Op) In(i int) Type { return op.Operands[i].Type }

// Out is the type of result i.
func (op *Op) Out(i int) Type { return op.Results[i].Type }

// Effect of this op.
func (op *Op) Effect() Effect {
	if op.Def.Effect == nil {
		return EffectNone
	}
	return op.Def.Effect(op)
}

// Det is the determinism of this op.
func (op *Op) Det() Det {
	if op.Def.Det == nil {
		return Exact
	}
	return op.Def.Det(op)
}

// Value is an SSA value: a result of Op, or a parameter of Block.
type Value struct {
	ID    int
	Name  string // unique in its function, no '%'
	Type  Type
	Op    *Op    // producer, nil for a parameter
	Block *Block // where it is defined
	Index int    // among the producer's results or the block's parameters
	Attrs Attrs  // of parameters: "role", "feed", …
}

// Role is the "role" attribute of a function's parameter; "input" where absent.
func (v *Value) Role() string {
	if r := v.Attrs.Str("role"); r != "" {
		return r
	}
	return RoleInput
}

// IsState reports whether v is a parameter that lives from step to step.
func (v *Value) IsState() bool {
	r := v.Role()
	return r == RoleParam || r == RoleOpt || r == RoleBuffer
}

// Effect of an op on the world (docs/numerics.md, "Two axes").
type Effect uint8

// Effects. All but none happen exactly once.
const (
	EffectNone Effect = iota
	EffectReads
	EffectWrites
	EffectComm
	EffectHost
)

// String is the word of the graph format.
func (e Effect) String() string {
	return [...]string{"none", "reads", "writes", "comm", "host"}[e]
}

// Det says when an op gives the same bits for the same operands.
type Det uint8

// Determinism classes. Exact and Keyed ops with no effect may be recomputed freely.
const (
	Exact   Det = iota // always
	Keyed              // always: randomness comes from an explicit key
	Tol                // order of arithmetic not fixed
	Decides            // always, but discrete: kept by default
	Unknown            // foreign: treated as Tol
)

// String is the word of the graph format.
func (d Det) String() string {
	return [...]string{"exact", "keyed", "tol", "decides", "unknown"}[d]
}

// NewModule makes an empty module.
func NewModule(name string) *Module { return &Module{Name: name} }

// NewFunc adds a function without parameters.
func (m *Module) NewFunc(name string) *Func {
	f := &Func{Module: m, Name: name}
	f.Body = &Block{Func: f}
	m.Funcs = append(m.Funcs, f)
	return f
}

// AddParam adds a parameter to a block; an empty name gets a number.
func (b *Block) AddParam(name string, t Type, attrs ...Attr) *Value {
	v := b.Func.newValue(name, t)
	v.Block, v.Index, v.Attrs = b, len(b.Params), MakeAttrs(attrs...)
	b.Params = append(b.Params, v)
	return v
}

func (f *Func) newValue(name string, t Type) *Value {
	v := &Value{ID: f.numValues, Name: name, Type: t}
	f.numValues++
	if name == "" {
		v.Name = autoName(v.ID)
	}
	return v
}

// autoName is the name of a value that was given none. Names of digits alone are
// reserved for it, so it never meets a given one.
func autoName(id int) string { return strconv.Itoa(id) }

func isNumber(name string) bool {
	return name != "" && strings.Trim(name, "0123456789") == ""
}

// NewRegion makes a block for a region of an op of f.
func (f *Func) NewRegion() *Block { return &Block{Func: f} }

// NewOp makes an op with results of the given types, without placing it in a block.
// Most callers want Builder.
func (f *Func) NewOp(def *OpDef, operands []*Value, results []Type, attrs Attrs, regions []*Block, loc Loc) *Op {
	op := &Op{ID: f.numOps, Def: def, Operands: operands, Attrs: attrs, Regions: regions, Loc: loc}
	f.numOps++
	for i, t := range results {
		v := f.newValue("", t)
		v.Op, v.Index = op, i
		op.Results = append(op.Results, v)
	}
	for _, r := range regions {
		r.Owner = op
	}
	return op
}

// Append places op at the end of b.
func (b *Block) Append(op *Op) {
	op.Block = b
	for _, r := range op.Results {
		r.Block = b
	}
	b.Ops = append(b.Ops, op)
}

// Walk visits every op of the block in order, an op before those of its regions.
func (b *Block) Walk(visit func(*Op)) {
	for _, op := range b.Ops {
		visit(op)
		for _, r := range op.Regions {
			r.Walk(visit)
		}
	}
}

// Renumber makes ids dense in program order, and names of nameless values follow: all
// names of digits alone, also those that were read from a text. Parameters of the function that were
// given such a name keep it.
func (f *Func) Renumber() {
	f.numOps, f.numValues = 0, 0
	var block func(b *Block)
	value := func(v *Value) {
		auto := v.Name == autoName(v.ID) || isNumber(v.Name) && (v.Op != nil || v.Block.Owner != nil)
		v.ID = f.numValues
		f.numValues++
		if auto {
			v.Name = autoName(v.ID)
		}
	}
	block = func(b *Block) {
		b.Func = f
		for i, p := range b.Params {
			p.Block, p.Index = b, i
			value(p)
		}
		for _, op := range b.Ops {
			op.Block = b
			op.ID = f.numOps
			f.numOps++
			for i, r := range op.Results {
				r.Op, r.Index, r.Block = op, i, b
				value(r)
			}
			for _, r := range op.Regions {
				r.Owner = op
				block(r)
			}
		}
	}
	block(f.Body)
}

// Uses counts, for each value id, the operands and block results that read it.
func (f *Func) Uses() []int {
	uses := make([]int, f.numValues)
	var block func(b *Block)
	block = func(b *Block) {
		for _, op := range b.Ops {
			for _, v := range op.Operands {
				uses[v.ID]++
			}
			for _, r := range op.Regions {
				block(r)
			}
		}
		for _, v := range b.Results {
			uses[v.ID]++
		}
	}
	block(f.Body)
	return uses
}

// Family is the family of the op's row.
func (op *Op) Family() string { return op.Def.Family }
