package lower

import (
	"fmt"

	"reprise/ir/kern"
	"reprise/ir/tensor"
)

// split is what is known of an index that was cut out of a flat one:
// (flat / div) mod mod, where flat < extent.
type split struct {
	flat             *kern.Expr
	div, mod, extent int64
}

// indexer makes index expressions and remembers how they were made, so that
// flattening what was just unflattened gives the flat index back.
type indexer struct {
	made  map[*kern.Expr]split
	known map[string]*kern.Expr
	canon map[*kern.Expr]*kern.Expr
}

func newIndexer() *indexer {
	return &indexer{map[*kern.Expr]split{}, map[string]*kern.Expr{}, map[*kern.Expr]*kern.Expr{}}
}

// intern gives one pointer to all index expressions of equal structure.
func (x *indexer) intern(e *kern.Expr) *kern.Expr {
	if c := x.canon[e]; c != nil {
		return c
	}
	c := *e
	key := fmt.Sprintf("%d %d %d %p %d %p", e.Op, e.DType, e.Bits, e.Var, e.Param, e.Local)
	if len(e.Args) > 0 {
		c.Args = make([]*kern.Expr, len(e.Args))
		for i, a := range e.Args {
			c.Args[i] = x.intern(a)
			key += fmt.Sprintf(" %p", c.Args[i])
		}
	}
	k := x.known[key]
	if k == nil {
		k = &c
		x.known[key] = k
		x.canon[k] = k
		if s, ok := x.made[e]; ok {
			x.made[k] = s
		}
	}
	x.canon[e] = k
	return k
}

func (x *indexer) internAll(idx []*kern.Expr) []*kern.Expr {
	out := make([]*kern.Expr, len(idx))
	for i, e := range idx {
		out[i] = x.intern(e)
	}
	return out
}

// unflatten cuts flat (0 ≤ flat < product of shape) into one index per dimension.
func (x *indexer) unflatten(flat *kern.Expr, shape []int64) []*kern.Expr {
	extent := tensor.Len(shape)
	idx := make([]*kern.Expr, len(shape))
	div := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		idx[i] = x.part(split{flat, div, shape[i], extent})
		div *= shape[i]
	}
	return idx
}

func (x *indexer) part(s split) *kern.Expr {
	if s.mod <= 1 || s.extent == 0 {
		return x.intern(kern.I64(0)) // nothing else, or no element at all
	}
	s.flat = x.intern(s.flat)
	if base, ok := x.made[s.flat]; ok && s.div*s.mod <= base.mod {
		// A part of a part is a part of the whole.
		return x.part(split{base.flat, base.div * s.div, s.mod, base.extent})
	}
	e := s.flat
	if s.div > 1 {
		e = kern.Div(e, kern.I64(s.div))
	}
	if s.div*s.mod < s.extent {
		e = kern.Rem(e, kern.I64(s.mod))
	}
	if e == s.flat {
		return e
	}
	e = x.intern(e)
	if _, ok := e.IsConst(); ok {
		return e // one constant is part of many an index
	}
	x.made[e] = s
	return e
}

// flatten is the row-major index of idx in shape. Runs of indices that were cut
// out of the same flat index are joined without arithmetic.
func (x *indexer) flatten(idx []*kern.Expr, shape []int64) *kern.Expr {
	if len(idx) != len(shape) {
		panic("BUG: index rank")
	}
	sum := kern.I64(0)
	stride := int64(1)
	for i := len(shape) - 1; i >= 0; {
		s, ok := x.made[idx[i]]
		n := shape[i]
		j := i - 1
		if ok {
			for ; j >= 0; j-- {
				if shape[j] == 1 {
					continue
				}
				t, ok := x.made[idx[j]]
				if !ok || t.flat != s.flat || t.div != s.div*s.mod || s.mod != n {
					break
				}
				s.mod *= t.mod
				n *= shape[j]
			}
		}
		e := idx[i]
		if ok {
			e = x.part(s)
		}
		if shape[i] == 1 && n == 1 {
			e = kern.I64(0)
		}
		if stride > 1 {
			e = kern.Mul(e, kern.I64(stride))
		}
		sum = kern.Add(sum, e)
		stride *= n
		i = j
	}
	return x.intern(sum)
}
