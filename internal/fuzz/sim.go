package fuzz

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"reprise/internal/compile"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/ops/attnref"
	"reprise/ir/ops/convref"
	"reprise/ir/tensor"
	"reprise/passes/lower"
	"reprise/runtime/exe"
)

// sim runs a program of launches in Go: kernels by the loop language's interpreter, the
// hand-scheduled families by their definitions. Workers take turns in the worst ways that the program's
// waits allow: one of them runs all of its tiles up to the next wait, then another.
type sim struct {
	x        *exe.Model
	launches map[string]lower.Launch
	arena    []byte
	r        *rand.Rand
	workers  int64
}

// Simulate is Check without code generation: hundreds of programs in the time that one takes to compile.
func Simulate(ctx context.Context, m *ir.Module, r *rand.Rand) error {
	before := m.String()
	if err := roundTrip(m); err != nil {
		return err
	}
	want, err := interpret(m)
	if err != nil {
		return err
	}
	fm := model(m)
	bs, err := budgets(ctx, fm, r, 2)
	if err != nil {
		return err
	}
	for _, b := range bs {
		x, ls, err := compile.Launches(ctx, fm, compile.Options{Budget: b, NoMinimum: true, Target: "cpu:x86-64-v3"})
		if err != nil {
			return fmt.Errorf("at budget %d: %w", b.Bytes, refusal(err))
		}
		if b.Bytes > 0 && x.ArenaBytes > b.Bytes {
			return fmt.Errorf("budget %d, arena %d", b.Bytes, x.ArenaBytes)
		}
		for _, l := range ls {
			if l.Kern != nil {
				if err := kern.Check(l.Kern); err != nil {
					return fmt.Errorf("at budget %d: %w", b.Bytes, err)
				}
			}
		}
		s := &sim{x: x, launches: ls, arena: make([]byte, x.ArenaBytes), r: r, workers: 1 + r.Int64N(3)}
		got, err := s.trace(m.Func("step"))
		if err != nil {
			return fmt.Errorf("at budget %d: %w", b.Bytes, err)
		}
		if err := differ(want, got, m.Func("step"), false); err != nil {
			return fmt.Errorf("at budget %d against the interpreter: %w", b.Bytes, err)
		}
	}
	if m.String() != before {
		return fmt.Errorf("compilation changed its input")
	}
	return nil
}

func (s *sim) at(v *exe.Value) []byte { return s.arena[v.Offset : v.Offset+v.Bytes] }

// trace is what the driver does: keys, step numbers, inputs, programs, outputs.
func (s *sim) trace(f *ir.Func) (trace, error) {
	for i := range s.arena {
		s.arena[i] = 0xa5
	}
	put := func(role exe.Role, data []byte) {
		for i := range s.x.Values {
			if v := &s.x.Values[i]; v.Role == role {
				copy(s.at(v), data)
			}
		}
	}
	put(exe.RoleKey, tensor.Key(seed, exe.InitStep, 0).Data)
	if err := s.run(s.x.Init); err != nil {
		return nil, err
	}
	var tr trace
	for n := range steps {
		in, err := inputs(f, n)
		if err != nil {
			return nil, err
		}
		put(exe.RoleKey, tensor.Key(seed, uint32(n), 0).Data)
		put(exe.RoleStep, binary.LittleEndian.AppendUint64(nil, uint64(n)))
		for name, t := range in {
			if v := s.x.Find(name); v.Role == exe.RoleInput {
				copy(s.at(v), t.Data)
			}
		}
		if err := s.run(s.x.Step); err != nil {
			return nil, err
		}
		out := map[string]*tensor.Tensor{}
		for _, name := range resultNames(f) {
			v := s.x.Find(name)
			t := tensor.New(v.DType, v.Shape...)
			copy(t.Data, s.at(v))
			out[name] = t
		}
		tr = append(tr, out)
	}
	return tr, nil
}

const maxInstructions = 100000

func (s *sim) run(prog []exe.Inst) error {
	pc := 0
	for range maxInstructions {
		if pc >= len(prog) {
			return nil
		}
		switch in := prog[pc]; in.Kind {
		case exe.Jump:
			pc = in.Targets[0]
			continue
		case exe.Print:
			pc++
			continue
		case exe.Check:
			if i := bytes.IndexByte(s.bytes(in.Pred), 0); i >= 0 {
				return fmt.Errorf("layer %s: assertion failed: %s (element %d of %d is false)", in.Layer, in.Message, i, in.Pred.Bytes)
			}
			pc++
			continue
		case exe.BranchIfFalse:
			pc++
			if s.bytes(in.Pred)[0] == 0 {
				pc = in.Targets[0]
			}
			continue
		case exe.Case:
			b := s.bytes(in.Pred)
			i := int64(int32(binary.LittleEndian.Uint32(b)))
			if in.Index == dtype.I64 {
				i = int64(binary.LittleEndian.Uint64(b))
			}
			if i < 0 || i >= int64(len(in.Targets)) {
				i = int64(len(in.Targets)) - 1
			}
			pc = in.Targets[i]
			continue
		}
		end := pc + 1
		for end < len(prog) && prog[end].Kind == exe.Launch && !prog[end].Wait {
			end++
		}
		for _, w := range s.r.Perm(int(s.workers)) {
			for _, in := range prog[pc:end] {
				lo, hi := int64(w)*in.Tiles/s.workers, int64(w+1)*in.Tiles/s.workers
				if err := s.launch(in, lo, hi); err != nil {
					return fmt.Errorf("%s: %w", in.Layer, err)
				}
			}
		}
		pc = end
	}
	return fmt.Errorf("it does not end")
}

func (s *sim) bytes(a exe.Arg) []byte {
	from := s.arena
	if a.Const {
		from = s.x.Consts
	}
	return from[a.Offset : a.Offset+a.Bytes : a.Offset+a.Bytes]
}

func (s *sim) launch(in exe.Inst, lo, hi int64) error {
	if lo == hi {
		return nil
	}
	l := s.launches[in.Symbol]
	if err := apart(l, in.Args); err != nil {
		return err
	}
	bufs := make([][]byte, len(in.Args))
	for i, a := range in.Args {
		bufs[i] = s.bytes(a)
	}
	switch {
	case l.Kern != nil:
		return kern.Run(l.Kern, bufs, lo, hi)
	case l.Contract != nil:
		return contract(l.Contract, bufs)
	case l.Conv != nil:
		store(bufs[2], convref.Conv32(l.Conv, load(bufs[0]), load(bufs[1])))
		return nil
	}
	a := l.Attention
	in32 := func(i int) []float32 { return widened(a.DType, bufs[i]) }
	n := 3
	if a.Backward {
		n = 6
	}
	before := a.Tk - a.Tq
	if a.Placed {
		before = min(max(int64(int32(binary.LittleEndian.Uint32(bufs[n]))), 0), before)
		n++
	}
	var key [16]byte
	out := bufs[n:]
	if a.Dropout > 0 {
		copy(key[:], bufs[n])
		out = bufs[n+1:]
	}
	if a.Backward {
		dq, dk, dv := attnref.Backward(a, in32(0), in32(1), in32(2), in32(3), load(bufs[4]), in32(5), &key)
		store(out[0], dq)
		store(out[1], dk)
		store(out[2], dv)
		return nil
	}
	o, lse := attnref.ForwardAt(a, before, in32(0), in32(1), in32(2), &key)
	narrowed(a.DType, out[0], o)
	store(out[1], lse)
	return nil
}

// widened is a buffer of f32, f16 or bf16 as f32.
func widened(d dtype.Type, b []byte) []float32 {
	x := make([]float32, int64(len(b))/d.Size())
	for i := range x {
		switch d {
		case dtype.BF16:
			x[i] = scalar.FromBF16(binary.LittleEndian.Uint16(b[2*i:]))
		case dtype.F16:
			x[i] = scalar.FromF16(binary.LittleEndian.Uint16(b[2*i:]))
		default:
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	}
	return x
}

// narrowed rounds x into a buffer of f32, f16 or bf16.
func narrowed(d dtype.Type, b []byte, x []float32) {
	for i, v := range x {
		switch d {
		case dtype.BF16:
			binary.LittleEndian.PutUint16(b[2*i:], scalar.BF16(v))
		case dtype.F16:
			binary.LittleEndian.PutUint16(b[2*i:], scalar.F16(v))
		default:
			binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(v))
		}
	}
}

// apart checks that what a launch writes lies apart from what it reads, or exactly on it. The operands
// of a hand-scheduled family are read all the time; only an epilogue's may be written over.
func apart(l lower.Launch, args []exe.Arg) error {
	for i, a := range args {
		for j, b := range args {
			if i == j || !a.Write || a.Const || b.Const || a.Offset >= b.Offset+b.Bytes || b.Offset >= a.Offset+a.Bytes {
				continue
			}
			onto := a.Offset == b.Offset && a.Bytes == b.Bytes && !b.Write
			if l.Contract != nil {
				onto = onto && j >= l.Contract.Buffers()
			} else {
				onto = onto && l.Kern != nil
			}
			if !onto {
				return fmt.Errorf("argument %d (%d bytes at %d) is written over argument %d (%d bytes at %d)", i, a.Bytes, a.Offset, j, b.Bytes, b.Offset)
			}
		}
	}
	return nil
}

func load(b []byte) []float32 { return widened(dtype.F32, b) }

func store(b []byte, x []float32) { narrowed(dtype.F32, b, x) }

// flat lists the offsets that a list of axes walks, the last fastest.
func flat(axes []kern.Axis, stride func(a kern.Axis) int64) []int64 {
	out := []int64{0}
	for _, a := range axes {
		var next []int64
		for _, o := range out {
			for i := range a.Size {
				next = append(next, o+i*stride(a))
			}
		}
		out = next
	}
	return out
}

// contract computes every chain, then stores it or runs the epilogue on it.
func contract(c *kern.Contract, bufs [][]byte) error {
	if err := kern.CheckContract(c); err != nil {
		return err
	}
	sa := func(a kern.Axis) int64 { return a.StrideA }
	sb := func(a kern.Axis) int64 { return a.StrideB }
	sc := func(a kern.Axis) int64 { return a.StrideC }
	outer := append(append([]kern.Axis{}, c.Batch...), c.M, c.N)
	pa, pb, pc := flat(outer, sa), flat(outer, sb), flat(outer, sc)
	ka, kb := flat(c.K, sa), flat(c.K, sb)
	operands, rest := [2][]byte{}, bufs
	for side, pro := range []*kern.Prologue{c.ProA, c.ProB} {
		if pro != nil {
			var err error
			if operands[side], err = c.Operand(side, bufs[c.Buffers():]); err != nil {
				return err
			}
			continue
		}
		operands[side], rest = rest[0], rest[1:]
	}
	a, b := operands[0], operands[1]
	acc := tensor.New(c.Acc, int64(len(pa)))
	for i := range pa {
		switch {
		case c.Acc == dtype.F64:
			sum := 0.0
			for k := range ka {
				sum = math.FMA(element(a, c.A, pa[i]+ka[k]), element(b, c.B, pb[i]+kb[k]), sum)
			}
			acc.F64()[i] = sum
		case c.A == dtype.BF16 && c.B == dtype.BF16:
			sum := float32(0)
			for k := 0; k < len(ka); k += 2 {
				var x, y float64
				if k+1 < len(ka) {
					x, y = element(a, c.A, pa[i]+ka[k+1]), element(b, c.B, pb[i]+kb[k+1])
				}
				sum = fmaFlush(float32(x), float32(y), sum)
				sum = fmaFlush(float32(element(a, c.A, pa[i]+ka[k])), float32(element(b, c.B, pb[i]+kb[k])), sum)
			}
			acc.F32()[i] = sum
		default:
			sum := float32(0)
			for k := range ka {
				sum = scalar.Fma32(float32(element(a, c.A, pa[i]+ka[k])), float32(element(b, c.B, pb[i]+kb[k])), sum)
			}
			acc.F32()[i] = sum
		}
	}
	if c.Epilogue == nil {
		for i := range pa {
			b := rest[0][pc[i]*c.Out.Size():]
			switch c.Out {
			case dtype.F64:
				binary.LittleEndian.PutUint64(b, acc.Bits(int64(i)))
			case dtype.F32:
				binary.LittleEndian.PutUint32(b, uint32(acc.Bits(int64(i))))
			case dtype.BF16:
				binary.LittleEndian.PutUint16(b, scalar.BF16(acc.F32()[i]))
			case dtype.F16:
				binary.LittleEndian.PutUint16(b, scalar.F16(acc.F32()[i]))
			}
		}
		return nil
	}
	// The epilogue as a kernel whose last parameter holds the chains.
	e := c.Epilogue
	batch := int64(1)
	for _, x := range c.Batch {
		batch *= x.Size
	}
	params := append(append([]kern.Param{}, c.Params...), kern.Param{Name: "acc", DType: c.Acc, Len: int64(len(pa))})
	chains := kern.Buf{Param: len(c.Params), DType: c.Acc}
	at := kern.Add(kern.Mul(kern.Add(kern.Mul(kern.Get(e.Batch), kern.I64(c.M.Size)), kern.Get(e.M)), kern.I64(c.N.Size)), kern.Get(e.N))
	body := append([]kern.Stmt{kern.Let(e.Acc, chains.At(at))}, e.Body...)
	k := &kern.Kernel{Name: c.Name, Params: params, Tiles: 1, Tile: kern.NewVar("tile", dtype.I64),
		Body: []kern.Stmt{kern.Range(e.Batch, kern.I64(batch), kern.Range(e.M, kern.I64(c.M.Size), kern.Lane(e.N, kern.I64(c.N.Size), body...)))}}
	return kern.Run(k, append(append([][]byte{}, rest...), acc.Data), 0, 1)
}

func element(b []byte, t dtype.Type, i int64) float64 {
	switch t {
	case dtype.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
	case dtype.BF16:
		return float64(scalar.FromBF16(binary.LittleEndian.Uint16(b[2*i:])))
	case dtype.F16:
		return float64(scalar.FromF16(binary.LittleEndian.Uint16(b[2*i:])))
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
}

// fmaFlush is an fma that takes denormal operands and results as zero (docs/numerics.md, bf16).
func fmaFlush(a, b, c float32) float32 {
	zero := func(x float32) float32 {
		if u := math.Float32bits(x); u&0x7f800000 == 0 {
			return math.Float32frombits(u & 0x80000000)
		}
		return x
	}
	a, b, c = zero(a), zero(b), zero(c)
	r := scalar.Fma32(a, b, c)
	if math.Abs(float64(a)*float64(b)+float64(c)) < 0x1p-126-0x1p-151 {
		return zero(float32(math.Copysign(0, float64(r))))
	}
	return r
}

// Run runs the programs of a model in Go for the steps that Check does, with as many workers as r says, and
// gives, for each step, the results and states of f by name. It serves whoever has a program that is not what
// the compiler made.
func Run(f *ir.Func, x *exe.Model, ls map[string]lower.Launch, r *rand.Rand) ([]map[string]*tensor.Tensor, error) {
	s := &sim{x: x, launches: ls, arena: make([]byte, x.ArenaBytes), r: r, workers: 1 + r.Int64N(3)}
	return s.trace(f)
}
