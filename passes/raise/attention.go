package raise

import (
	"math"
	"slices"

	"reprise/ir"
	"reprise/ir/dtype"
)

// Dimensions of an attention pattern are told apart by labels: those of the probabilities are numbered
// as they stand in the last contraction's operand.
const (
	featureLabel = -1 // summed over in the scores
	valueLabel   = -2 // the values' features
	dropLabel    = -3 // of size 1, goes
)

// operand is a value with a label for each of its dimensions.
type operand struct {
	v     *ir.Value
	label []int
}

// masked is the greatest number that a hidden score may be replaced by, or have added: far enough below
// any other score that its exponential is zero.
const masked = -1e4

// attend is a matched attention.
type attend struct {
	m       *match
	size    map[int]int64 // of each label
	j       int           // label of keys
	i, g    int           // labels of queries, and of the query heads of one key head; g may be missing
	batch   []int         // labels of batch and head dimensions
	q, k, v operand
	rep     int   // label of the head dimension that k and v repeat, or missing
	repeat  int64 // how often
	scale   float64
	causal  bool
	parts   map[int][]int // labels of dimensions that are also seen as one, with the one's label
	split   map[int]bool  // the ones that q, k and v have in parts
	drop    *ir.Op        // dropout of the probabilities, or nil
	dropped []int         // labels of its dimensions in order
	out     []int         // labels of the root's dimensions in order
}

const missing = -9

// firstPart is the least label of a part.
const firstPart = 100

// attention: softmax(q·kᵀ·scale, masked) · v, each of q, k and v with its dimensions in any order; grouped
// heads by repeating k and v or by a further dimension of q. In f32, as the op is.
func attention(m *match) write {
	if m.root.Name() != "contract" || m.root.Out(0).DType != dtype.F32 {
		return nil
	}
	for side := range 2 {
		a := &attend{m: m, size: map[int]int64{}, parts: map[int][]int{}, split: map[int]bool{}, scale: 1, i: missing, g: missing, rep: missing}
		if m.try(func() bool { return a.match(side) }) {
			return a.write
		}
	}
	return nil
}

func sideDims(op *ir.Op, side int) (batch, contract []int64) {
	s := [...]string{"lhs", "rhs"}[side]
	return op.Attrs.Ints(s + "_batch"), op.Attrs.Ints(s + "_contract")
}

// match matches with the probabilities on one side of the root.
func (a *attend) match(side int) bool {
	m := a.m
	pBatch, pContract := sideDims(m.root, side)
	vBatch, vContract := sideDims(m.root, 1-side)
	if len(pContract) != 1 {
		return false
	}
	p := operand{v: m.root.Operands[side]}
	for d, n := range p.v.Type.Shape {
		p.label = append(p.label, d)
		a.size[d] = n
	}
	a.j = int(pContract[0])
	// The values.
	v := m.root.Operands[1-side]
	a.v = operand{v, make([]int, v.Type.Rank())}
	for d := range a.v.label {
		a.v.label[d] = valueLabel
	}
	a.v.label[vContract[0]] = a.j
	for i, d := range vBatch {
		a.v.label[d] = int(pBatch[i])
		a.batch = append(a.batch, int(pBatch[i]))
	}
	if !a.once(a.v, valueLabel) {
		return false
	}
	// The result: batch, free dimensions of the left, of the right.
	a.out = slices.Clone(a.batch)
	var free []int
	for _, l := range p.label {
		if l != a.j && !slices.Contains(a.batch, l) {
			free = append(free, l)
		}
	}
	if side == 0 {
		a.out = append(append(a.out, free...), valueLabel)
	} else {
		a.out = append(append(a.out, valueLabel), free...)
	}
	if len(free) < 1 || len(free) > 2 {
		return false
	}
	return a.probabilities(p, free) && a.heads(free)
}

// once: exactly one dimension has the label.
func (a *attend) once(o operand, label int) bool {
	n := 0
	for _, l := range o.label {
		if l == label {
			n++
		}
	}
	return n == 1
}

// through looks through transposes.
func (a *attend) through(o operand) operand {
	for {
		op := a.m.op(o.v, "transpose")
		if op == nil {
			return o
		}
		label := make([]int, len(o.label))
		for d, from := range op.Attrs.Ints("perm") {
			label[from] = o.label[d]
		}
		o = operand{op.Operands[0], label}
	}
}

// splitAt reports whether many is one with dimension d cut into several: how many.
func splitAt(many, one []int64, d int) (n int, ok bool) {
	if n = len(many) - len(one) + 1; n < 2 || d >= len(one) {
		return 0, false
	}
	return n, slices.Equal(many[:d], one[:d]) && slices.Equal(many[d+n:], one[d+1:]) && volume(many[d:d+n]) == one[d]
}

func volume(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// partsOf is the labels of the parts of l in the given sizes; nil where it has others.
func (a *attend) partsOf(l int, sizes []int64) []int {
	ps := a.parts[l]
	if ps == nil {
		for _, n := range sizes {
			ps = append(ps, firstPart+len(a.size))
			a.size[ps[len(ps)-1]] = n
		}
		a.parts[l] = ps
	}
	if len(ps) != len(sizes) {
		return nil
	}
	for i, p := range ps {
		if a.size[p] != sizes[i] {
			return nil
		}
	}
	return ps
}

// down is through, and also looks through reshapes that cut a batch dimension or join its parts.
func (a *attend) down(o operand) operand {
	for {
		o = a.through(o)
		op := a.m.op(o.v, "reshape")
		if op == nil {
			return o
		}
		label := a.reshaped(op, o.label)
		if label == nil {
			a.m.in = a.m.in[:len(a.m.in)-1]
			return o
		}
		o = operand{op.Operands[0], label}
	}
}

// reshaped is the labels of a reshape's operand from those of its result.
func (a *attend) reshaped(op *ir.Op, label []int) []int {
	x, r := op.In(0).Shape, op.Out(0).Shape
	for d, l := range label {
		if n, ok := splitAt(x, r, d); ok && slices.Contains(a.batch, l) {
			if ps := a.partsOf(l, x[d:d+n]); ps != nil {
				return slices.Concat(label[:d], ps, label[d+1:])
			}
		}
	}
	for d := range x {
		if n, ok := splitAt(r, x, d); ok {
			for _, l := range a.batch {
				if ps := a.parts[l]; ps != nil && slices.Equal(ps, label[d:d+n]) {
					return slices.Concat(label[:d], []int{l}, label[d+n:])
				}
			}
		}
	}
	return nil
}

// unjoin finds q, k and v with a batch dimension in parts, as batch and heads, where all three have been
// reshaped to join them.
func (a *attend) unjoin() (rep int, times int64) {
	rep = missing
	for _, b := range slices.Clone(a.batch) {
		a.m.try(func() bool {
			q, ps := a.inParts(a.q, b)
			if ps == nil {
				return false
			}
			var kv [2]operand
			var reps [2]int
			var many [2]int64
			for i, o := range []operand{a.k, a.v} {
				n := len(a.m.in)
				var same []int
				if kv[i], same = a.inParts(o, b); same != nil {
					reps[i] = missing
					continue
				}
				a.m.in = a.m.in[:n]
				if kv[i], reps[i], many[i] = a.repeatedParts(o, b, ps); reps[i] == missing {
					return false
				}
			}
			if reps[0] != reps[1] || many[0] != many[1] || reps[0] != missing && rep != missing {
				return false
			}
			if reps[0] != missing {
				rep, times = reps[0], many[0]
			}
			a.q, a.k, a.v = q, kv[0], kv[1]
			i := slices.Index(a.batch, b)
			a.batch = slices.Replace(a.batch, i, i+1, ps...)
			a.split[b] = true
			return true
		})
	}
	return rep, times
}

// inParts matches an operand that was reshaped to join the parts of b.
func (a *attend) inParts(o operand, b int) (operand, []int) {
	op := a.m.op(o.v, "reshape")
	if op == nil {
		return o, nil
	}
	d := slices.Index(o.label, b)
	n, ok := splitAt(op.In(0).Shape, op.Out(0).Shape, d)
	if !ok {
		return o, nil
	}
	ps := a.partsOf(b, op.In(0).Shape[d:d+n])
	if ps == nil {
		return o, nil
	}
	return a.through(operand{op.Operands[0], slices.Concat(o.label[:d], ps, o.label[d+1:])}), ps
}

// repeatedParts matches an operand whose heads were repeated, and then joined with the batch.
func (a *attend) repeatedParts(o operand, b int, ps []int) (w operand, label int, times int64) {
	op := a.m.op(o.v, "reshape")
	d := slices.Index(o.label, b)
	if op == nil {
		return o, missing, 0
	}
	n, ok := splitAt(op.In(0).Shape, op.Out(0).Shape, d)
	if !ok || n != len(ps)+1 {
		return o, missing, 0
	}
	in := op.In(0).Shape[d : d+n]
	for i, p := range ps[:len(ps)-1] {
		if in[i] != a.size[p] {
			return o, missing, 0
		}
	}
	if in[n-2]*in[n-1] != a.size[ps[len(ps)-1]] {
		return o, missing, 0
	}
	return a.unrepeat(op.Operands[0], d+n-2, slices.Concat(o.label[:d], ps, o.label[d+1:]))
}

// probabilities matches from the last contraction's operand down to q and k.
func (a *attend) probabilities(p operand, free []int) bool {
	m := a.m
	p = a.down(p)
	if op := m.op(p.v, "dropout"); op != nil {
		if len(op.Operands) > 1 {
			a.drop, a.dropped = op, p.label
		} else if op.Attrs.Float("p") != 0 {
			return false
		}
		p = a.down(operand{op.Operands[0], p.label})
	}
	sm := m.op(p.v, "softmax")
	if sm == nil || p.label[sm.Attrs.Int("axis")] != a.j {
		return false
	}
	s := a.down(operand{sm.Operands[0], p.label})
	for {
		if op := m.op(s.v, "contract"); op != nil {
			return op.Out(0).DType == dtype.F32 && a.scores(op, s.label)
		}
		if next, k := a.scaled(s.v); next != nil {
			if !(k > 0) {
				return false
			}
			a.scale *= k
			s.v = next
		} else if next := a.mask(s, free); next != nil {
			s.v = next
		} else {
			return false
		}
		s = a.down(s)
	}
}

// scaled matches x·k or x/k.
func (a *attend) scaled(v *ir.Value) (x *ir.Value, k float64) {
	n := len(a.m.in)
	if op := a.m.op(v, "mul", "div"); op != nil {
		for i := range 2 {
			k, ok := splat(op.Operands[1-i])
			switch {
			case !ok || k == 0 || math.IsInf(k, 0):
			case op.Name() == "mul":
				return op.Operands[i], k
			case i == 0:
				return op.Operands[0], 1 / k
			}
		}
	}
	a.m.in = a.m.in[:n]
	return nil, 0
}

// scores matches the first contraction, whose result has the labels.
func (a *attend) scores(op *ir.Op, label []int) bool {
	if op.In(0).DType != dtype.F32 {
		return false
	}
	var sides [2]operand
	at := len(op.Attrs.Ints("lhs_batch"))
	for side := range sides {
		batch, contract := sideDims(op, side)
		if len(contract) != 1 {
			return false
		}
		v := op.Operands[side]
		o := operand{v, make([]int, v.Type.Rank())}
		for d := range o.label {
			switch i := slices.Index(batch, int64(d)); {
			case i >= 0:
				o.label[d] = label[i]
				if !slices.Contains(a.batch, label[i]) {
					return false
				}
			case int64(d) == contract[0]:
				o.label[d] = featureLabel
			default:
				o.label[d] = label[at]
				if slices.Contains(a.batch, label[at]) {
					return false // a batch dimension that only one side has
				}
				at++
			}
		}
		sides[side] = o
	}
	a.q, a.k = sides[0], sides[1]
	if slices.Contains(a.q.label, a.j) {
		a.q, a.k = a.k, a.q
	}
	if len(a.k.label) != len(a.batch)+2 || !slices.Contains(a.k.label, a.j) {
		return false
	}
	for _, o := range []*operand{&a.q, &a.k} {
		for {
			*o = a.through(*o)
			next, k := a.scaled(o.v)
			if next == nil {
				break
			}
			a.scale *= k
			o.v = next
		}
	}
	a.v = a.through(a.v)
	d := a.q.v.Type.Shape[slices.Index(a.q.label, featureLabel)]
	return a.scale > 0 && a.v.v.Type.Shape[slices.Index(a.v.label, valueLabel)] == d
}

// heads settles which dimensions are heads and which are queries.
func (a *attend) heads(free []int) bool {
	switch {
	case len(free) == 1:
		if a.i != missing && a.i != free[0] {
			return false
		}
		a.i = free[0]
	case a.i == missing: // no mask tells: the one that stands further in front in q
		a.i, a.g = free[0], free[1]
		if slices.Index(a.q.label, a.i) > slices.Index(a.q.label, a.g) {
			a.i, a.g = a.g, a.i
		}
	default:
		if a.g = free[0]; a.g == a.i {
			a.g = free[1]
		}
	}
	if a.g == missing {
		a.rep, a.repeat = a.unjoin()
	}
	k, kRep, kTimes := a.repeated(a.k)
	v, vRep, vTimes := a.repeated(a.v)
	if a.rep == missing && kRep != missing && kRep == vRep && kTimes == vTimes && a.g == missing {
		a.k, a.v, a.rep, a.repeat = k, v, kRep, kTimes
	}
	return (!a.causal || a.size[a.i] <= a.size[a.j]) && a.sameMask()
}

// apart is labels with parts in the place of the ones.
func (a *attend) apart(labels []int) (out []int) {
	for _, l := range labels {
		if ps := a.parts[l]; ps != nil {
			out = append(out, ps...)
		} else {
			out = append(out, l)
		}
	}
	return out
}

// sameMask: dropout's random numbers are counted over batch, heads, queries and keys, in that order, as the
// op counts them.
func (a *attend) sameMask() bool {
	if a.drop == nil || a.drop.Attrs.Float("p") == 0 {
		return true
	}
	batch, heads := a.order()
	want := slices.Concat(batch, heads, []int{a.g, a.i, a.j})
	short := func(l int) bool { return l == missing || a.size[l] == 1 }
	return slices.Equal(slices.DeleteFunc(a.apart(want), short), slices.DeleteFunc(a.apart(a.dropped), short))
}

// repeated matches a value that repeats each head of another a number of times.
func (a *attend) repeated(o operand) (w operand, label int, times int64) {
	m := a.m
	n := len(m.in)
	if r := m.op(o.v, "reshape"); r != nil {
		in, out := r.In(0).Shape, r.Out(0).Shape
		for at := range out {
			if k, ok := splitAt(in, out, at); ok && k == 2 && slices.Contains(a.batch, o.label[at]) {
				if w, label, times = a.unrepeat(r.Operands[0], at, o.label); label != missing {
					return w, label, times
				}
			}
		}
	}
	m.in = m.in[:n]
	return o, missing, 0
}

// unrepeat matches a broadcast along a new dimension at+1, where label has what is seen with dimensions at and
// at+1 as one.
func (a *attend) unrepeat(v *ir.Value, at int, label []int) (w operand, rep int, times int64) {
	m := a.m
	n := len(m.in)
	fail := func() (operand, int, int64) {
		m.in = m.in[:n]
		return operand{}, missing, 0
	}
	b := m.op(v, "broadcast")
	if b == nil || b.Out(0).Rank() != len(label)+1 {
		return fail()
	}
	in, x := b.Out(0).Shape, b.Operands[0]
	w = operand{v: x}
	for i, d := range b.Attrs.Ints("dims") {
		switch {
		case int(d) == at+1 && x.Type.Shape[i] == 1:
			w.label = append(w.label, dropLabel)
		case int(d) == at+1 || x.Type.Shape[i] != in[d]:
			return fail()
		case int(d) > at:
			w.label = append(w.label, label[d-1])
		default:
			w.label = append(w.label, label[d])
		}
	}
	if len(w.label) < len(label) {
		return fail() // repeated along something else too
	}
	if k := slices.Index(w.label, dropLabel); k >= 0 {
		// Without the dimension of size 1, if the value had none before.
		if r := m.op(x, "reshape"); r != nil {
			if slices.Equal(r.In(0).Shape, slices.Delete(slices.Clone(x.Type.Shape), k, k+1)) {
				w = operand{r.Operands[0], slices.Delete(w.label, k, k+1)}
			} else {
				m.in = m.in[:len(m.in)-1]
			}
		}
	}
	return a.through(w), label[at], in[at+1]
}

// order is the batch labels: those that become the op's batch, and those that become its heads.
func (a *attend) order() (batch, heads []int) {
	iAt := slices.Index(a.q.label, a.i)
	for d, l := range a.q.label {
		switch {
		case !slices.Contains(a.batch, l):
		case d < iAt:
			batch = append(batch, l)
		default:
			heads = append(heads, l)
		}
	}
	last := missing // the key head, innermost
	switch {
	case a.rep != missing:
		last = a.rep
	case a.g != missing && len(heads) > 0:
		last = heads[len(heads)-1]
	case a.g != missing && len(batch) > 1: // of one alone, all query heads share a key head
		last = batch[len(batch)-1]
	}
	if last != missing {
		is := func(l int) bool { return l == last }
		batch, heads = slices.DeleteFunc(batch, is), append(slices.DeleteFunc(heads, is), last)
	}
	return batch, heads
}

func (a *attend) write(b *ir.Builder, val func(*ir.Value) *ir.Value) *ir.Value {
	batch, heads := a.order()
	volume := func(labels []int) int64 {
		n := int64(1)
		for _, l := range labels {
			n *= a.size[l]
		}
		return n
	}
	to := []int{}
	for _, l := range a.out {
		if a.split[l] {
			to = append(to, a.parts[l]...)
		} else {
			to = append(to, l)
		}
	}
	group := []int{}
	if a.g != missing {
		group = []int{a.g}
	}
	// lay brings an operand to [batch, time, heads, feature].
	lay := func(o operand, time int, group []int, feature int, heads64 int64) *ir.Value {
		v, label := val(o.v), slices.Clone(o.label)
		if k := slices.Index(label, dropLabel); k >= 0 {
			v = reshaped(b, v, slices.Delete(slices.Clone(v.Type.Shape), k, k+1)...)
			label = slices.Delete(label, k, k+1)
		}
		want := slices.Concat(batch, []int{time}, heads, group, []int{feature})
		v = permuted(b, v, label, want)
		return reshaped(b, v, volume(batch), a.size[time], heads64, v.Type.Shape[v.Type.Rank()-1])
	}
	kv := volume(heads)
	if a.rep != missing {
		kv /= a.repeat
	}
	q := lay(a.q, a.i, group, featureLabel, volume(heads)*volume(group))
	in := []*ir.Value{q, lay(a.k, a.j, nil, featureLabel, kv), lay(a.v, a.j, nil, valueLabel, kv)}
	scale := 1 / math.Sqrt(float64(q.Type.Shape[3]))
	if !near(a.scale, scale, dtype.F32) {
		scale = decimal(a.scale, dtype.F32)
	}
	attrs := []ir.Attr{ir.A("causal", a.causal), ir.A("scale", scale)}
	if a.drop != nil && a.drop.Attrs.Float("p") > 0 {
		in = append(in, val(a.drop.Operands[1]))
		attrs = append(attrs, ir.A("p", a.drop.Attrs.Float("p")), ir.A("rng", a.drop.Attrs.Int("rng")))
	}
	out := b.Multi("attention", in, nil, attrs...).Results[0]
	label := slices.Concat(batch, []int{a.i}, heads, group, []int{valueLabel})
	shape := make([]int64, len(label))
	for d, l := range label {
		if shape[d] = a.size[l]; l == valueLabel {
			shape[d] = q.Type.Shape[3]
		}
	}
	return reshaped(b, permuted(b, reshaped(b, out, shape...), label, to), a.m.root.Out(0).Shape...)
}

// permuted brings dimensions from one order of labels to another.
func permuted(b *ir.Builder, v *ir.Value, from, to []int) *ir.Value {
	if slices.Equal(from, to) {
		return v
	}
	perm := make([]int64, len(to))
	for d, l := range to {
		perm[d] = int64(slices.Index(from, l))
	}
	return b.Op("transpose", []*ir.Value{v}, ir.A("perm", perm))
}
