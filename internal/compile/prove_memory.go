package compile

import (
	"fmt"
	"slices"

	"reprise/ir"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/runtime/exe"
)

// memory replays the final program on its layout: it notes which value's bytes lie where, and
// finds the first op that reads a value of which something was overwritten (P7). It uses
// offsets and sizes only, nothing of how the layout was made.
func (p *planned) memory() error {
	r := &replay{low: p.low}
	return r.block(p.applied.Func.Body, p.frame, func(v *ir.Value) error {
		return fmt.Errorf("BUG: a result of the step lies nowhere: %%%s", v.Name)
	})
}

// extent is a piece of memory: of a parameter's buffer, or of the frame where param is nil.
type extent struct {
	param  *ir.Value
	lo, hi int64
}

// held is an extent with the value whose bytes it has, from byte at of the value on.
type held struct {
	extent
	value *ir.Value // nil: nobody's
	at    int64
}

// replay is the memory of one block.
type replay struct {
	low func(*ir.Op) (*lower.Lowered, error)
	// byParam and frame have disjoint pieces in the order of their offsets.
	frame   []held
	byParam map[*ir.Value][]held
}

func place0(v *ir.Value, f *buffer.Frame) (e extent, ok bool) {
	h := f.Homes[v]
	switch {
	case h.Const != nil || h.External != "":
		return e, false
	case h.Param != nil:
		return extent{h.Param, 0, v.Type.Bytes()}, true
	}
	return extent{nil, h.Offset, h.Offset + v.Type.Bytes()}, true
}

func (r *replay) pieces(param *ir.Value) []held {
	if param == nil {
		return r.frame
	}
	return r.byParam[param]
}

// write makes v (nil: nobody) the owner of an extent.
func (r *replay) write(e extent, v *ir.Value) {
	if e.lo >= e.hi {
		return
	}
	ps := r.pieces(e.param)
	first, _ := slices.BinarySearchFunc(ps, e.lo, func(h held, lo int64) int {
		if h.hi <= lo {
			return -1
		}
		return 1
	})
	last := first
	var left, right []held
	for ; last < len(ps) && ps[last].lo < e.hi; last++ {
		h := ps[last]
		if h.lo < e.lo {
			left = append(left, held{extent{h.param, h.lo, e.lo}, h.value, h.at})
		}
		if h.hi > e.hi {
			right = append(right, held{extent{h.param, e.hi, h.hi}, h.value, h.at + e.hi - h.lo})
		}
	}
	ps = slices.Replace(ps, first, last, slices.Concat(left, []held{{e, v, 0}}, right)...)
	if e.param == nil {
		r.frame = ps
	} else {
		r.byParam[e.param] = ps
	}
}

// holds reports whether an extent still has v's bytes, and who has the first other one.
func (r *replay) holds(e extent, v *ir.Value) (ok bool, other *ir.Value) {
	at := e.lo
	for _, h := range r.pieces(e.param) {
		if h.hi <= at || at >= e.hi {
			continue
		}
		if h.lo > at || h.value != v || h.at+at-h.lo != at-e.lo {
			return false, h.value
		}
		at = h.hi
	}
	return at >= e.hi, nil
}

// block replays a block; lost makes the error for a result that is not in memory at the end.
func (r *replay) block(b *ir.Block, f *buffer.Frame, lost func(*ir.Value) error) error {
	r.byParam = map[*ir.Value][]held{}
	for _, p := range b.Params {
		r.write(extent{p, 0, p.Type.Bytes()}, p)
	}
	// Workspaces lie where the code will have them; a stretch says how large one is.
	work := map[*ir.Op][]extent{}
	for _, s := range f.Stretches {
		if s.Value != nil || s.Op == nil {
			continue
		}
		at := f.RegionAt[s.Op]
		if !buffer.IsControl(s.Op) {
			at = f.Work[s.Op][len(work[s.Op])]
		}
		work[s.Op] = append(work[s.Op], extent{nil, at, at + s.Bytes})
	}
	read := func(op *ir.Op, v *ir.Value) error {
		e, ok := place0(v, f)
		if !ok {
			return nil
		}
		if ok, other := r.holds(e, base(v)); !ok {
			by := "nothing"
			if other != nil && other.Op != nil {
				by = fmt.Sprintf("a result of %s in layer %s", other.Op.Name(), other.Op.Loc.Layer)
			}
			return proofError(op, "pinned", "%s reads %%%s (%v), in whose memory lies %s (P7)", op.Name(), v.Name, v.Type, by)
		}
		return nil
	}
	for _, op := range b.Ops {
		if lower.IsConstant(op) || lower.IsView(op) {
			continue
		}
		for _, v := range op.Operands {
			if err := read(op, v); err != nil {
				return err
			}
		}
		var pairs [][2]int
		if !buffer.IsControl(op) {
			l, err := r.low(op)
			if err != nil {
				return err
			}
			pairs = l.InPlace
		}
		if err := r.apart(op, f, work[op], pairs); err != nil {
			return err
		}
		for _, e := range work[op] {
			r.write(e, nil)
		}
		for i, region := range op.Regions {
			if !buffer.IsControl(op) {
				break
			}
			inner := &replay{low: r.low}
			if err := inner.block(region, f.Regions[op][i], func(v *ir.Value) error {
				return proofError(op, "pinned", "a region of %s yields %%%s, which is not in memory any more (P7)", op.Name(), v.Name)
			}); err != nil {
				return err
			}
		}
		for _, v := range op.Results {
			if e, ok := place0(v, f); ok {
				r.write(e, v)
			}
		}
	}
	for _, v := range b.Results {
		if e, ok := place0(v, f); ok {
			if ok, _ := r.holds(e, base(v)); !ok {
				if v.Op != nil && b.Owner == nil {
					return proofError(v.Op, "pinned", "the result of %s is overwritten before the end of the step (P7)", v.Op.Name())
				}
				return lost(v)
			}
		}
	}
	return nil
}

// apart checks that what op writes overlaps nothing that it reads or writes besides, but for pairs
// that its kernel may run in place.
func (r *replay) apart(op *ir.Op, f *buffer.Frame, work []extent, pairs [][2]int) error {
	meet := func(a, b extent) bool { return a.param == b.param && a.lo < b.hi && b.lo < a.hi }
	var out []extent
	for i, v := range op.Results {
		e, ok := place0(v, f)
		if !ok {
			continue
		}
		for k, x := range op.Operands {
			if from, ok := place0(x, f); ok && meet(e, from) && !(e == from && slices.Contains(pairs, [2]int{k, i})) {
				return proofError(op, "pinned", "%s writes result %d over operand %d, which it still reads (P7)", op.Name(), i, k)
			}
		}
		out = append(out, e)
	}
	out = append(out, work...)
	for _, e := range out {
		if e.param == nil && (e.lo < 0 || e.hi > f.Size) {
			return proofError(op, "pinned", "%s writes bytes %d to %d of a frame of %d (P7)", op.Name(), e.lo, e.hi, f.Size)
		}
	}
	for i, a := range out {
		for _, b := range out[:i] {
			if meet(a, b) {
				return proofError(op, "pinned", "%s has two results or workspaces in one place (P7)", op.Name())
			}
		}
	}
	for _, w := range work {
		for k, x := range op.Operands {
			if from, ok := place0(x, f); ok && meet(w, from) {
				return proofError(op, "pinned", "%s has its workspace over operand %d (P7)", op.Name(), k)
			}
		}
	}
	return nil
}

// WrittenOnce is P6 on the launches of the step: those that write to a state's bytes are of one op, or the
// copy that brings its new value home, and a state without a new value is not written at all.
func (p *Program) WrittenOnce(x *exe.Model) error {
	step := p.planned.applied.Func
	// The last launch of each writer.
	writers := map[string][]int{}
	for pc := range x.Step {
		in := &x.Step[pc]
		for _, a := range in.Args {
			if !a.Write || a.Const || a.Bytes == 0 || a.Offset >= x.ResidentBytes {
				continue
			}
			for i := range x.Values {
				v := &x.Values[i]
				if !v.Role.IsState() || a.Offset >= v.Offset+v.Bytes || v.Offset >= a.Offset+a.Bytes {
					continue
				}
				w := writers[v.Name]
				if n := len(w); n > 0 && in.Run != 0 && !slices.ContainsFunc(x.Step[w[n-1]:pc], func(b exe.Inst) bool { return b.Run != in.Run }) {
					w[n-1] = pc // a further launch of the op
					continue
				}
				writers[v.Name] = append(w, pc)
			}
		}
	}
	for _, v := range step.Body.Params {
		w := writers[v.Name]
		new := step.Result(v.Name)
		want := 0
		if v.IsState() && new != nil && v.Type.Bytes() > 0 && base(new) != v {
			want = 1
		}
		if len(w) == want {
			continue
		}
		var op *ir.Op
		if new != nil {
			op = new.Op
		}
		e := proofError(op, "pinned", "state %q is written by %d ops or copies of the step instead of %d (P6)", v.Name, len(w), want)
		if len(w) > want {
			e.Layer = x.Step[w[want]].Layer
		}
		return e
	}
	return nil
}
