// Package raise finds composite ops that a model wrote in parts (softmax, norms, GELU, cross-entropy,
// rotary embedding, attention) and puts the op in their place. It runs before autodiff and whatever the
// budget: from here on the raised op's order of arithmetic is the meaning.
//
// Patterns are matched on the SSA graph: what computes what, in any order of commutative operands, with
// constants as scalars, splats or broadcasts. Names don't count. Two ops that compute the same count as one,
// since cse has not run yet. A pattern is only taken if nothing else reads what lies inside it: otherwise
// that would be computed twice. What nearly matches stays as it is.
//
// Two things may change by more than rounding. What overflowed, because it was written without a shift by the
// greatest element, may become a number, and infinite logits may become NaN in other places. And the loss of a row
// whose label is no class, which gathers clamp: a model that has such labels masks their rows, before and after.
package raise

import (
	"fmt"
	"slices"
	"strings"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/tensor"
	"reprise/passes/canon"
	"reprise/passes/dce"
)

// pattern tries to match at m.root, whose ops it collects in m, and returns how to write the composite op.
type pattern struct {
	name  string
	match func(m *match) write
}

// write makes the value that takes the root's place; operands go through val. nil: no match.
type write func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value

// rounds are the patterns in order: later ones are built on what earlier ones have raised.
func rounds() [][]pattern {
	return [][]pattern{
		{{"logistic", logistic}, {"gelu", gelu}},
		{{"silu", silu}},
		{{"softmax", softmax}, {"log_softmax", logSoftmax}},
		{{"softmax of logarithm", expLog}},
		{{"layer_norm", layerNorm}},
		{{"rms_norm", rmsNorm}},
		{{"narrow", narrow}},
		{{"cross_entropy", crossEntropy}},
		{{"ignore_index", ignoreIndex}},
		{{"rope", rope}},
		{{"attention", attention}},
	}
}

// Run raises in every function and region of m, in place. What the raised ops replace is removed, and
// where something was raised canonical forms are restored.
func Run(m *ir.Module, t *ir.Table) (err error) {
	defer diag.Catch(&err)
	changed := false
	for _, f := range m.Funcs {
		changed = block(f.Body, t) || changed
		f.Renumber()
	}
	if !changed {
		return nil
	}
	if err := canon.Run(m, t); err != nil {
		return err
	}
	dce.Run(m)
	return nil
}

func block(b *ir.Block, t *ir.Table) bool {
	changed := false
	for _, op := range b.Ops {
		if op.Name() != "fused" {
			for _, r := range op.Regions {
				changed = block(r, t) || changed
			}
		}
	}
	s := newScope(b)
	for _, r := range rounds() {
		if s.once(t, r) {
			dce.Block(b)
			changed = true
			s = newScope(b)
		}
	}
	return changed
}

// scope is what the matches of a block share, until something is raised.
type scope struct {
	b       *ir.Block
	pos     map[*ir.Op]int
	readers map[*ir.Value][]*ir.Op
	result  map[*ir.Value]bool
	rep     map[*ir.Value]*ir.Value // the first value that is computed the same way
	taken   map[*ir.Op]bool         // inside a match that was found
	known   map[*ir.Value]*tensor.Tensor
}

func newScope(b *ir.Block) *scope {
	s := &scope{b, map[*ir.Op]int{}, map[*ir.Value][]*ir.Op{}, map[*ir.Value]bool{}, map[*ir.Value]*ir.Value{}, map[*ir.Op]bool{}, map[*ir.Value]*tensor.Tensor{}}
	first := map[string]*ir.Op{}
	for i, op := range b.Ops {
		s.pos[op] = i
		for _, v := range op.Operands {
			s.readers[v] = append(s.readers[v], op)
		}
		key := s.key(op)
		if key == "" {
			continue
		}
		if f := first[key]; f == nil {
			first[key] = op
		} else {
			for k, r := range op.Results {
				s.rep[r] = f.Results[k]
			}
		}
	}
	for _, v := range b.Results {
		s.result[v] = true
	}
	for _, op := range b.Ops {
		for _, v := range op.Results {
			s.result[v] = s.result[v] || v.Marked() // so that no pattern swallows it
		}
	}
	return s
}

// maxKey bounds the elements of a constant that is compared by value.
const maxKey = 4096

// key is equal for ops that compute the same; "" for ops that are only equal to themselves.
func (s *scope) key(op *ir.Op) string {
	if len(op.Regions) > 0 || op.Remat != nil || op.Effect() != ir.EffectNone || op.Det() == ir.Tol || op.Det() == ir.Unknown {
		return ""
	}
	if t := op.Attrs.Tensor("value"); t != nil && t.Len() > maxKey {
		return fmt.Sprintf("constant %p", t)
	}
	var b strings.Builder
	b.WriteString(op.Name())
	for _, v := range op.Operands {
		fmt.Fprintf(&b, " %d", s.same(v).ID)
	}
	b.WriteString(op.Attrs.String())
	return b.String()
}

// same is the value that stands for all that are computed as v is.
func (s *scope) same(v *ir.Value) *ir.Value {
	if r := s.rep[v]; r != nil {
		return r
	}
	return v
}

// eq reports whether u and v are the same computation.
func (s *scope) eq(u, v *ir.Value) bool { return s.same(u) == s.same(v) }

// once runs one round over the block; later roots first, so that the largest match wins.
func (s *scope) once(t *ir.Table, patterns []pattern) bool {
	b := s.b
	found := map[*ir.Op]write{}
	for i := len(b.Ops) - 1; i >= 0; i-- {
		op := b.Ops[i]
		if s.taken[op] || op.Remat != nil || len(op.Results) != 1 {
			continue
		}
		for _, p := range patterns {
			m := &match{scope: s, root: op}
			if w := p.match(m); w != nil && m.closed() {
				found[op] = w
				for _, o := range m.in {
					s.taken[o] = true
				}
				break
			}
		}
	}
	if len(found) == 0 {
		return false
	}
	old := b.Ops
	b.Ops = nil
	to := ir.Mapping{}
	for _, op := range old {
		w := found[op]
		if w == nil {
			op.Operands = to.All(op.Operands)
			b.Ops = append(b.Ops, op)
			continue
		}
		r := op.Results[0]
		v := w(ir.NewBuilder(t, b, op.Loc), to.Get)
		v.Inherit(r) // what a person has named keeps its name
		to[r] = v
	}
	b.Results = to.All(b.Results)
	return true
}

// match is an attempt at one root.
type match struct {
	*scope
	root *ir.Op
	in   []*ir.Op // ops of the pattern, but the root
}

// op is v's producer if it has one of the names, and becomes part of the pattern; else nil.
func (m *match) op(v *ir.Value, names ...string) *ir.Op {
	op := v.Op
	if op == nil || op.Block != m.b || op.Remat != nil || m.taken[op] || !slices.Contains(names, op.Name()) {
		return nil
	}
	if op != m.root {
		m.in = append(m.in, op)
	}
	return op
}

// try undoes what f has collected if it fails.
func (m *match) try(f func() bool) bool {
	n := len(m.in)
	if f() {
		return true
	}
	m.in = m.in[:n]
	return false
}

// either matches a commutative op in both orders of its operands.
func (m *match) either(v *ir.Value, name string, f func(a, b *ir.Value) bool) bool {
	return m.try(func() bool {
		op := m.op(v, name)
		return op != nil && m.swap(op, f)
	})
}

func (m *match) swap(op *ir.Op, f func(a, b *ir.Value) bool) bool {
	return m.try(func() bool { return f(op.Operands[0], op.Operands[1]) }) ||
		m.try(func() bool { return f(op.Operands[1], op.Operands[0]) })
}

// closed reports whether nothing outside of the pattern reads what is computed inside. Ops that only
// move elements may have other readers, if their operands are not inside.
func (m *match) closed() bool {
	in := map[*ir.Op]bool{m.root: true}
	for _, op := range m.in {
		in[op] = true
	}
	ops := slices.Clone(m.in)
	slices.SortFunc(ops, func(a, b *ir.Op) int { return m.pos[b] - m.pos[a] })
	live := map[*ir.Op]bool{}
	for _, op := range ops {
		for _, r := range op.Results {
			live[op] = live[op] || m.result[r]
			for _, u := range m.readers[r] {
				live[op] = live[op] || !in[u] || live[u]
			}
		}
		if live[op] && !moving(op) {
			return false
		}
	}
	return true
}

func moving(op *ir.Op) bool {
	switch op.Name() {
	case "broadcast", "reshape", "transpose", "constant", "iota", "copy", "slice", "convert":
		return true
	}
	return false
}
