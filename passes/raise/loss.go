package raise

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
)

// picked matches the elements of x [..., C] at labels [...]: a sum of x where the class is the label (which is
// 0 where no class is), or take_along. The result has the shape of x without its last dimension.
func (m *match) picked(v *ir.Value) (x, labels *ir.Value, summed bool) {
	m.try(func() bool {
		if op := m.op(v, "reduce"); op != nil {
			summed = true
			last := int64(op.In(0).Rank() - 1)
			if op.Attrs.Str("kind") != "sum" || !slices.Equal(op.Attrs.Ints("axes"), []int64{last}) {
				return false
			}
			x, labels = m.onlyLabel(op.Operands[0])
			return x != nil
		}
		if r := m.op(v, "reshape"); r != nil {
			v = r.Operands[0]
		}
		op := m.op(v, "take_along", "gather")
		if op == nil || op.In(0).Rank() == 0 {
			return false
		}
		last := op.In(0).Rank() - 1
		if op.Name() == "gather" {
			x, labels = op.Operands[0], op.Operands[1]
			return onePerRow(op) && labels.Type.Len() == op.Out(0).Len()
		}
		if op.Attrs.Int("axis") != int64(last) || op.Out(0).Shape[last] != 1 {
			return false
		}
		x, labels = op.Operands[0], op.Operands[1]
		if r := m.op(labels, "reshape"); r != nil && slices.Equal(r.In(0).Shape, x.Type.Shape[:last]) {
			labels = r.Operands[0]
		}
		return true
	})
	if labels == nil || !labels.Type.DType.IsInt() {
		return nil, nil, false
	}
	return x, labels, summed
}

// within reports whether labels are said to be 0 … n-1: by the feed of the input that they are.
func within(labels *ir.Value, n int64) bool {
	for labels.Op != nil {
		switch labels.Op.Name() {
		case "reshape", "slice", "copy", "transpose", "broadcast":
			labels = labels.Op.Operands[0]
		case "convert":
			if !labels.Op.In(0).DType.IsInt() {
				return false
			}
			labels = labels.Op.Operands[0]
		default:
			return false
		}
	}
	kind, most, ok := strings.Cut(labels.Attrs.Str("feed"), ":")
	k, err := strconv.ParseInt(most, 10, 64)
	return ok && err == nil && k <= n && slices.Contains([]string{"tokens", "targets", "uniform_int"}, kind)
}

// guarded is loss where a label is a class, and 0 where it is none.
func guarded(b *ir.Builder, loss, labels *ir.Value, classes int64) *ir.Value {
	labels = reshaped(b, labels, loss.Type.Shape...)
	if classes > 127 && labels.Type.DType.Size() < 4 { // the bound must fit
		labels = b.Op("convert", []*ir.Value{labels}, ir.A("to", dtype.I32))
	}
	number := func(k int64) *ir.Value {
		t := tensor.Of([]int64{k})
		c := b.Op("constant", nil, ir.A("value", ops.ConvertTensor(t, labels.Type.DType)))
		return b.Op("broadcast", []*ir.Value{c}, ir.A("dims", []int64{}), ir.A("shape", loss.Type.Shape))
	}
	from := b.Op("compare", []*ir.Value{labels, number(0)}, ir.A("dir", "ge"))
	to := b.Op("compare", []*ir.Value{labels, number(classes - 1)}, ir.A("dir", "le"))
	return b.Op("select", []*ir.Value{b.Op("and", []*ir.Value{from, to}), loss, ops.Full(b, loss.Type, 0)})
}

// onePerRow: the gather takes one element of each row, whose index is the row's.
func onePerRow(op *ir.Op) bool {
	last := int64(op.In(0).Rank() - 1)
	rows := make([]int64, last)
	for i := range rows {
		rows[i] = int64(i)
	}
	for _, n := range op.Attrs.Ints("slice_sizes") {
		if n != 1 {
			return false
		}
	}
	return len(op.Attrs.Ints("offset_dims")) == 0 && op.Attrs.Str("mode") == "clamp" &&
		slices.Equal(op.Attrs.Ints("collapsed_slice_dims"), []int64{last}) && slices.Equal(op.Attrs.Ints("start_index_map"), []int64{last}) &&
		slices.Equal(op.Attrs.Ints("operand_batching_dims"), rows) && slices.Equal(op.Attrs.Ints("start_indices_batching_dims"), rows)
}

// onlyLabel matches x where the class is the label, and 0 elsewhere.
func (m *match) onlyLabel(v *ir.Value) (x, labels *ir.Value) {
	shape := v.Type.Shape
	if !m.either(v, "mul", func(a, hot *ir.Value) bool {
		x, labels = a, m.oneHot(hot, shape)
		return labels != nil
	}) && !m.try(func() bool {
		op := m.op(v, "select")
		if op == nil {
			return false
		}
		k, ok := splat(op.Operands[2])
		x, labels = op.Operands[1], m.isLabel(whole(op.Operands[0]), shape)
		return ok && k == 0 && labels != nil
	}) {
		return nil, nil
	}
	return x, labels
}

// oneHot matches 1 where the class is the label, else 0: the labels.
func (m *match) oneHot(v *ir.Value, shape []int64) (labels *ir.Value) {
	m.try(func() bool {
		op := m.op(v, "one_hot", "convert", "select")
		if op == nil {
			return false
		}
		switch op.Name() {
		case "one_hot":
			if a := op.Attrs.Int("axis"); a != -1 && a != int64(len(shape)-1) {
				return false
			}
			labels = op.Operands[0]
		case "convert":
			if op.In(0).DType == dtype.Bool {
				labels = m.isLabel(whole(op.Operands[0]), shape)
			} else {
				labels = m.oneHot(op.Operands[0], shape)
			}
		case "select":
			one, ok := splat(op.Operands[1])
			zero, ok2 := splat(op.Operands[2])
			if ok && ok2 && one == 1 && zero == 0 {
				labels = m.isLabel(whole(op.Operands[0]), shape)
			}
		}
		return labels != nil
	})
	return labels
}

// isLabel matches "the class is the label": iota along the last dimension equals the labels.
func (m *match) isLabel(c at, shape []int64) (labels *ir.Value) {
	last := len(shape) - 1
	c = m.peel(c)
	m.either(c.v, "compare", func(a, b *ir.Value) bool {
		if c.v.Op.Attrs.Str("dir") != "eq" {
			return false
		}
		classes := m.peel(at{a, c.view})
		iota := m.op(classes.v, "iota")
		if iota == nil {
			return false
		}
		i := slices.Index(long(iota.Out(0).Shape), iota.Attrs.Int("dim"))
		if i < 0 || classes.view[i] != int64(last) {
			return false
		}
		l := m.peel(at{b, c.view})
		if !l.v.Type.DType.IsInt() || !slices.Equal(l.view, long(shape[:last])) || !slices.Equal(sizes(l.v.Type.Shape), sizes(shape[:last])) {
			return false
		}
		labels = l.v
		return true
	})
	return labels
}

// lossOf writes the cross-entropy of logits in the type and shape of the value that it replaces.
func lossOf(b *ir.Builder, val func(*ir.Value) *ir.Value, logits, labels *ir.Value, d dtype.Type) *ir.Value {
	x := val(logits)
	rows := x.Type.Shape[:x.Type.Rank()-1]
	loss := b.Op("cross_entropy", []*ir.Value{x, reshaped(b, val(labels), rows...)})
	if loss.Type.DType != d {
		loss = b.Op("convert", []*ir.Value{loss}, ir.A("to", d))
	}
	return loss
}

// crossEntropy: -log_softmax(x)[label], the sign being taken before or after sums and means over rows;
// logsumexp(x) - x[label], shifted or not. A one-hot sum is 0 for a label that is no class, and models may
// count on it: it stays 0, by a select on rows unless the labels are said to be classes.
func crossEntropy(m *match) write {
	if !m.isFloat() {
		return nil
	}
	root := m.root
	var w write
	negative := func(v *ir.Value, factor float64) bool {
		inner := m.minusPicked(v, 8)
		if inner == nil {
			return false
		}
		w = inner
		if factor != 1 {
			w = func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
				x := inner(b, val)
				return b.Op(root.Name(), []*ir.Value{x, ops.Full(b, x.Type, factor)})
			}
		}
		return true
	}
	switch root.Name() {
	case "neg":
		m.try(func() bool { return negative(root.Operands[0], 1) })
	case "mul":
		m.swap(root, func(a, c *ir.Value) bool {
			k, ok := splat(c)
			return ok && k < 0 && negative(a, -k)
		})
	case "div":
		m.try(func() bool {
			k, ok := splat(root.Operands[1])
			return ok && k < 0 && negative(root.Operands[0], -k)
		})
	case "sub":
		if k, ok := splat(root.Operands[0]); ok && k == 0 {
			m.try(func() bool { return negative(root.Operands[1], 1) })
		} else {
			m.try(func() bool {
				w = m.lseLess(root.Operands[0], root.Operands[1])
				return w != nil
			})
		}
	case "reduce", "reshape", "take_along":
		m.try(func() bool {
			inner := m.minusPick(root.Results[0])
			if inner != nil {
				w = func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
					return b.Op("neg", []*ir.Value{inner(b, val)})
				}
			}
			return inner != nil
		})
	}
	return w
}

// minusPick matches log_softmax(x)[label]: how to write its negative.
func (m *match) minusPick(v *ir.Value) (w write) {
	m.try(func() bool {
		lp, labels, summed := m.picked(v)
		if lp == nil {
			return false
		}
		op := m.op(lp, "log_softmax")
		if op == nil || op.Attrs.Int("axis") != int64(op.In(0).Rank()-1) {
			return false
		}
		rows, classes := v.Type.Shape, lp.Type.Shape[lp.Type.Rank()-1]
		guard := summed && !within(labels, classes)
		w = func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
			loss := lossOf(b, val, op.Operands[0], labels, v.Type.DType)
			if guard {
				loss = guarded(b, loss, val(labels), classes)
			}
			return reshaped(b, loss, rows...)
		}
		return true
	})
	return w
}

// minusPicked is minusPick below sums, reshapes and products with positive constants.
func (m *match) minusPicked(v *ir.Value, depth int) write {
	if w := m.minusPick(v); w != nil || depth == 0 {
		return w
	}
	var w write
	m.try(func() bool {
		op := m.op(v, "reduce", "reshape", "mul", "div")
		if op == nil || op.Name() == "reduce" && op.Attrs.Str("kind") != "sum" {
			return false
		}
		for i := range op.Operands {
			if len(op.Operands) == 2 {
				if k, ok := splat(op.Operands[1-i]); !ok || k <= 0 || op.Name() == "div" && i == 1 {
					continue
				}
			}
			if inner := m.minusPicked(op.Operands[i], depth-1); inner != nil {
				w = func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
					in := slices.Clone(op.Operands)
					for j := range in {
						if j == i {
							in[j] = inner(b, val)
						} else {
							in[j] = val(in[j])
						}
					}
					return b.At(op.Loc).Op(op.Name(), in, op.Attrs...)
				}
				return true
			}
		}
		return false
	})
	return w
}

// lseLess matches logsumexp(x) - x[label] for logits x, both shifted by the greatest element or not.
func (m *match) lseLess(lse, pick *ir.Value) write {
	u, labels, _ := m.picked(pick)
	if u == nil {
		return nil
	}
	shape := u.Type.Shape
	last := int64(len(shape) - 1)
	if !slices.Equal(sizes(lse.Type.Shape), sizes(shape[:last])) {
		return nil
	}
	x, axis, exact := m.logSumExp(at{lse, long(shape[:last])}, shape)
	if x == nil || axis != last {
		return nil
	}
	switch {
	case exact && m.eq(u, x):
	case !exact:
		if y := m.unshifted(u, []int64{axis}); y == u || !m.eq(y, x) {
			return nil
		}
	default:
		return nil
	}
	return func(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
		return reshaped(b, lossOf(b, val, x, labels, lse.Type.DType), lse.Type.Shape...)
	}
}

// ignoreIndex: a loss that is 0 where the label is some number.
func ignoreIndex(m *match) write {
	if m.root.Name() != "select" {
		return nil
	}
	mask, loss := m.root.Operands[0], m.root.Operands[1]
	if k, ok := splat(m.root.Operands[2]); !ok || k != 0 {
		return nil
	}
	ce := m.op(loss, "cross_entropy")
	if ce == nil || ce.Attrs.Int("ignore_index") != ops.NoIgnore {
		return nil
	}
	labels, k, ok := counted(mask)
	if !ok {
		return nil
	}
	// The labels of rows that don't count may have been replaced before.
	given := ce.Operands[1]
	if !m.eq(given, labels) {
		s := m.op(given, "select")
		if s == nil || !m.eq(s.Operands[1], labels) {
			return nil
		}
		if l, k2, ok := counted(s.Operands[0]); !ok || !m.eq(l, labels) || k != k2 {
			return nil
		}
	}
	return call("cross_entropy", []*ir.Value{ce.Operands[0], labels}, ir.A("ignore_index", int64(k)))
}

// counted matches labels ≠ k.
func counted(mask *ir.Value) (labels *ir.Value, k float64, ok bool) {
	op := mask.Op
	if op == nil || op.Name() != "compare" || op.Attrs.Str("dir") != "ne" || !op.In(0).DType.IsInt() {
		return nil, 0, false
	}
	for i := range 2 {
		if k, ok := splat(op.Operands[1-i]); ok && k == math.Trunc(k) && math.Abs(k) < 1<<53 {
			return op.Operands[i], k, true
		}
	}
	return nil, 0, false
}
