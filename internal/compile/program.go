package compile

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/passes/buffer"
	"reprise/passes/lower"
	"reprise/passes/remat"
	"reprise/runtime/exe"
)

// kernels gives launches their symbols; equal kernels get the same one.
type kernels interface {
	// Launches are what the family's emitter makes of one lowered launch.
	Launches(l lower.Launch) ([]kernelLaunch, error)
}

// kernelLaunch is a function of the compiled code.
type kernelLaunch struct {
	Symbol string
	Tiles  int64
	// Own: the kernel takes one more argument, a constant of these bytes.
	Own     []byte
	Foreign bool   // it is a function of Library
	Library string // "": of the process
}

// emitter writes programs of launches for one model.
type emitter struct {
	k      kernels
	consts []byte
	at     map[*ir.Op]int64 // dense constant → offset in the pool
	own    map[string]place // what kernels have of their own, by its bytes
	prog   []exe.Inst
	states map[string]place // homes outside any frame, by name
	runs   *runTable        // of @step; nil for @init, whose ops the plan does not know
	faults *faulty          // nil: none
}

// place is a value's memory in absolute terms.
type place struct {
	konst  bool
	offset int64
	bytes  int64
}

func (p place) arg(write bool) exe.Arg {
	return exe.Arg{Const: p.konst, Offset: p.offset, Bytes: p.bytes, Write: write}
}

// moves: bringing p's bytes to q changes memory.
func (p place) moves(q place) bool { return (p.konst || p.offset != q.offset) && p.bytes > 0 }

// meets: writing q changes p.
func (p place) meets(q place) bool {
	return !p.konst && !q.konst && p.offset < q.offset+q.bytes && q.offset < p.offset+p.bytes
}

func (e *emitter) constant(op *ir.Op) place {
	t := op.Attrs.Tensor("value")
	off, ok := e.at[op]
	if !ok {
		off = e.pool(t.Data).offset
		e.at[op] = off
	}
	return place{true, off, int64(len(t.Data))}
}

// pool puts bytes into the constant pool.
func (e *emitter) pool(data []byte) place {
	off := remat.RoundUp(int64(len(e.consts)))
	e.consts = append(e.consts, make([]byte, off-int64(len(e.consts)))...)
	e.consts = append(e.consts, data...)
	return place{true, off, int64(len(data))}
}

// block emits the ops of a block laid out in frame, whose memory starts at base.
// params are the places of its parameters. It returns the places of its results.
func (e *emitter) block(b *ir.Block, frame *buffer.Frame, base int64, params []place, low func(*ir.Op) (*lower.Lowered, error)) ([]place, error) {
	where := func(v *ir.Value) place {
		h := frame.Homes[v]
		n := v.Type.Bytes()
		switch {
		case h.Param != nil:
			p := params[h.Param.Index]
			return place{p.konst, p.offset, n}
		case h.Const != nil:
			return e.constant(h.Const)
		case h.External != "":
			return e.states[h.External]
		}
		return place{false, base + h.Offset, n}
	}
	for _, op := range b.Ops {
		for range e.faults.times(op, e.runs) {
			if err := e.faults.before(e, op, where); err != nil {
				return nil, err
			}
			run := e.runs.open(op, where)
			first := len(e.prog)
			if err := e.op(op, frame, base, where, low); err != nil {
				return nil, err
			}
			if err := e.faults.after(e, op, where); err != nil {
				return nil, err
			}
			e.runs.close(run, e.prog, first)
		}
	}
	out := make([]place, len(b.Results))
	for i, v := range b.Results {
		out[i] = where(v)
	}
	return out, nil
}

// op emits one op.
func (e *emitter) op(op *ir.Op, frame *buffer.Frame, base int64, where func(*ir.Value) place, low func(*ir.Op) (*lower.Lowered, error)) error {
	switch {
	case lower.IsConstant(op) || lower.IsView(op):
		return nil
	case buffer.IsControl(op):
		return e.control(op, frame, base, where, low)
	}
	l, err := low(op)
	if err != nil {
		return err
	}
	return e.launches(op, l, frame, base, where)
}

func (e *emitter) launches(op *ir.Op, l *lower.Lowered, frame *buffer.Frame, base int64, where func(*ir.Value) place) error {
	work := frame.Work[op]
	for _, launch := range l.Launches {
		if launch.Host != nil {
			e.host(op, launch.Host, where)
			continue
		}
		ks, err := e.k.Launches(launch)
		if err != nil {
			d := *diag.As(err)
			d.Layer, d.Op = op.Loc.Layer, op.Name()
			return &d
		}
		params := launchParams(launch)
		var args []exe.Arg
		for i, r := range launch.Args {
			var p place
			switch r.Kind {
			case lower.Operand:
				p = where(op.Operands[r.Index])
			case lower.Result:
				p = where(op.Results[r.Index])
			case lower.Workspace:
				p = place{false, base + work[r.Index], l.Workspaces[r.Index]}
			}
			args = append(args, p.arg(params[i]))
		}
		if launch.Foreign != nil {
			args = slices.Insert(args, 0, e.pool(launch.Foreign.Call).arg(false))
		}
		for _, k := range ks {
			e.launch(k, op.Loc.String(), args)
		}
	}
	return nil
}

// launch emits a launch of a kernel, which reads what it has of its own behind args.
func (e *emitter) launch(k kernelLaunch, layer string, args []exe.Arg) {
	args = slices.Clone(args)
	if len(k.Own) > 0 {
		p, ok := e.own[string(k.Own)]
		if !ok {
			p = e.pool(k.Own)
			e.own[string(k.Own)] = p
		}
		args = append(args, p.arg(false))
	}
	e.prog = append(e.prog, exe.Inst{Kind: exe.Launch, Symbol: k.Symbol, Layer: layer, Tiles: k.Tiles, Args: args, Foreign: k.Foreign, Library: k.Library})
}

// host emits what the driver does itself.
func (e *emitter) host(op *ir.Op, h *lower.Host, where func(*ir.Value) place) {
	in := exe.Inst{Kind: exe.Check, Message: h.Says, Layer: op.Loc.String()}
	if h.Print != nil {
		in.Kind, in.Args = exe.Print, []exe.Arg{e.pool(h.Print).arg(false)}
		for _, v := range op.Operands {
			in.Args = append(in.Args, where(v).arg(false))
		}
	} else {
		in.Pred = where(op.Operands[0]).arg(false)
	}
	e.prog = append(e.prog, in)
}

// launchParams tells which arguments a launch writes.
func launchParams(l lower.Launch) []bool {
	w := make([]bool, len(l.Args))
	switch {
	case l.Kern != nil:
		for i := range l.Kern.Params {
			w[i] = l.Kern.Params[i].Writes
		}
	case l.Contract != nil:
		n := l.Contract.Buffers()
		if l.Contract.Epilogue == nil {
			w[n-1] = true
		}
		for i := range l.Contract.Params {
			w[n+i] = l.Contract.Params[i].Writes
		}
	default:
		for i, r := range l.Args {
			w[i] = r.Kind != lower.Operand
		}
	}
	return w
}

// control emits a while, if or case.
func (e *emitter) control(op *ir.Op, frame *buffer.Frame, base int64, where func(*ir.Value) place, low func(*ir.Op) (*lower.Lowered, error)) error {
	at := base + frame.RegionAt[op]
	frames := frame.Regions[op]
	places := func(vs []*ir.Value) []place {
		out := make([]place, len(vs))
		for i, v := range vs {
			out[i] = where(v)
		}
		return out
	}
	results := places(op.Results)
	switch op.Name() {
	case "while":
		carried := results
		if err := e.copies(op, places(op.Operands), carried, -1); err != nil {
			return err
		}
		head := len(e.prog)
		pred, err := e.block(op.Regions[0], frames[0], at, carried, low)
		if err != nil {
			return err
		}
		exit := len(e.prog)
		e.prog = append(e.prog, exe.Inst{Kind: exe.BranchIfFalse, Pred: pred[0].arg(false), Layer: op.Loc.String()})
		next, err := e.block(op.Regions[1], frames[1], at, carried, low)
		if err != nil {
			return err
		}
		room := at + max(frames[0].Size, frames[1].Size)
		if err := e.copies(op, next, carried, room); err != nil {
			return err
		}
		e.prog = append(e.prog, exe.Inst{Kind: exe.Jump, Targets: []int{head}})
		e.prog[exit].Targets = []int{len(e.prog)}
		return nil
	case "if", "case":
		args := places(op.Operands[1:])
		sel := len(e.prog)
		kind := exe.Inst{Kind: exe.Case, Pred: where(op.Operands[0]).arg(false), Index: op.In(0).DType, Layer: op.Loc.String()}
		if op.Name() == "if" {
			kind.Kind, kind.Index = exe.BranchIfFalse, dtype.Invalid
		}
		e.prog = append(e.prog, kind)
		var starts, ends []int
		for i, r := range op.Regions {
			starts = append(starts, len(e.prog))
			out, err := e.block(r, frames[i], at, args, low)
			if err != nil {
				return err
			}
			if err := e.copies(op, out, results, -1); err != nil {
				return err
			}
			ends = append(ends, len(e.prog))
			e.prog = append(e.prog, exe.Inst{Kind: exe.Jump})
		}
		for _, j := range ends {
			e.prog[j].Targets = []int{len(e.prog)}
		}
		if op.Name() == "if" {
			e.prog[sel].Targets = []int{starts[1]}
		} else {
			e.prog[sel].Targets = starts
		}
		return nil
	}
	return fmt.Errorf("BUG: control op %s", op.Name())
}

// crossing: some place is also a target of another's move. No two targets share memory.
func crossing(from, to []place) bool {
	var moved []int // by where they go
	for j := range to {
		if from[j].moves(to[j]) {
			moved = append(moved, j)
		}
	}
	slices.SortFunc(moved, func(i, j int) int { return cmp.Compare(to[i].offset, to[j].offset) })
	for i, p := range from {
		if p.konst {
			continue
		}
		first := sort.Search(len(moved), func(k int) bool { t := to[moved[k]]; return t.offset+t.bytes > p.offset })
		for _, j := range moved[first:] {
			if to[j].offset >= p.offset+p.bytes {
				break
			}
			if i != j && p.meets(to[j]) {
				return true
			}
		}
	}
	return false
}

// copies moves each place to another. Where a source is also a target of another move, all go
// through memory at room.
func (e *emitter) copies(op *ir.Op, from, to []place, room int64) error {
	if crossing(from, to) {
		if room < 0 {
			return fmt.Errorf("BUG: %s copies over what it still reads", op.Name())
		}
		mid := make([]place, len(from))
		at := room
		for i, p := range from {
			mid[i] = place{false, at, p.bytes}
			at += remat.RoundUp(p.bytes)
		}
		if err := e.copies(op, from, mid, -1); err != nil {
			return err
		}
		from = mid
	}
	for i := range from {
		if !from[i].moves(to[i]) {
			continue
		}
		if err := e.copy(from[i], to[i], op.Loc.String()); err != nil {
			return err
		}
	}
	return nil
}

func (e *emitter) copy(from, to place, layer string) error {
	ks, err := e.k.Launches(lower.Launch{Kern: copyKernel(from.bytes)})
	if err != nil {
		return err
	}
	for _, k := range ks {
		e.launch(k, layer, []exe.Arg{from.arg(false), to.arg(true)})
	}
	return nil
}

// copyKernel moves n bytes in the widest elements that divide n.
func copyKernel(n int64) *kern.Kernel {
	t := dtype.U8
	for _, w := range []dtype.Type{dtype.U64, dtype.U32, dtype.U16} {
		if n%w.Size() == 0 {
			t = w
			break
		}
	}
	const perTile = 1 << 14
	count := n / t.Size()
	b := kern.NewBuilder("copy", max(1, (count+perTile-1)/perTile))
	in, out := b.In("in", t, count), b.Out("out", t, count)
	base := kern.Mul(b.TileIndex(), kern.I64(perTile))
	c := kern.NewVar("c", dtype.I64)
	at := kern.Add(base, kern.Get(c))
	b.Do(kern.Lane(c, kern.Min(kern.I64(perTile), kern.Sub(kern.I64(count), base)), out.Set(at, in.At(at))))
	return b.K
}

// residents lays out what lives through the step: state first, in the order of names, then
// keys, the step number and inputs.
func residents(f *ir.Func) (offset map[string]int64, state, total int64) {
	offset = map[string]int64{}
	ps := slices.Clone(f.Body.Params)
	sort.SliceStable(ps, func(i, j int) bool {
		if a, b := ps[i].IsState(), ps[j].IsState(); a != b {
			return a
		}
		return ps[i].Name < ps[j].Name
	})
	for _, p := range ps {
		offset[p.Name] = total
		total += remat.RoundUp(p.Type.Bytes())
		if p.IsState() {
			state = total
		}
	}
	return offset, state, total
}
