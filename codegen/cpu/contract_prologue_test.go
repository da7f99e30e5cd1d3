package cpu

import (
	"math/rand"
	"testing"
	"unsafe"

	"github.com/llir/llvm/ir"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern"
)

// contractAddPrologue makes operand side of c one that is computed: an activation of a buffer of the
// operand's own layout, with a factor for each row of one axis, a term for each of the other, and
// dropout. The parameters come after those that c has.
func contractAddPrologue(c *kern.Contract, side int, alongK bool) {
	t, n, own := c.A, c.LenA, c.M
	stride := func(a kern.Axis) int64 { return a.StrideA }
	if side == 1 {
		t, n, own = c.B, c.LenB, c.N
		stride = func(a kern.Axis) int64 { return a.StrideB }
	}
	p := &kern.Prologue{Batch: kern.NewVar("b", dtype.I64), Lo: kern.NewVar("lo", dtype.I64), Hi: kern.NewVar("hi", dtype.I64),
		Base: kern.NewVar("base", dtype.I64), N: kern.NewVar("n", dtype.I64), Ld: kern.NewVar("ld", dtype.I64), AlongK: alongK, Flops: 60}
	chain := int64(1)
	for _, a := range c.K {
		chain *= a.Size
	}
	first := len(c.Params)
	c.Params = append(c.Params, kern.Param{Name: "src", DType: t, Len: n}, kern.Param{Name: "stat", DType: c.Acc, Len: own.Size},
		kern.Param{Name: "gain", DType: c.Acc, Len: chain}, kern.Param{Name: "key", DType: dtype.U32, Len: 4})
	buf := func(i int) kern.Buf { return kern.Buf{Param: first + i, DType: c.Params[first+i].DType} }
	r, l := kern.NewVar("r", dtype.I64), kern.NewVar("c", dtype.I64)
	col := kern.Add(kern.Mul(kern.Get(p.Base), kern.I64(kern.Lanes)), kern.Get(l))
	k, x := col, kern.Get(r)
	if !alongK {
		k, x = x, col
	}
	at := kern.Mul(x, kern.I64(stride(own)))
	split := func(axes []kern.Axis, flat *kern.Expr) {
		for i := len(axes) - 1; i >= 0; i-- {
			at = kern.Add(at, kern.Mul(kern.Rem(flat, kern.I64(axes[i].Size)), kern.I64(stride(axes[i]))))
			flat = kern.Div(flat, kern.I64(axes[i].Size))
		}
	}
	split(c.K, k)
	split(c.Batch, kern.Get(p.Batch))
	wide := func(e *kern.Expr) *kern.Expr { return kern.Convert(e, c.Acc) }
	key := kern.LoadKey(buf(3))
	u := kern.Random(key, 7+uint32(side), kern.I64(3), at)
	v := kern.Add(kern.Mul(kern.Tanh(wide(buf(0).At(at))), buf(1).At(x)), buf(2).At(k))
	v = kern.Convert(kern.Select(kern.Kept(u, 0.25), v, kern.Zero(c.Acc)), t)
	out := &kern.Store{Param: first + 4, Value: v,
		Index: kern.Add(kern.Mul(kern.Sub(kern.Get(r), kern.Get(p.Lo)), kern.Get(p.Ld)), kern.Get(l))}
	p.Body = []kern.Stmt{&kern.For{Var: r, Lo: kern.Get(p.Lo), Hi: kern.Get(p.Hi), Step: 1, Body: []kern.Stmt{kern.Lane(l, kern.Get(p.N), out)}}}
	if side == 0 {
		c.ProA = p
	} else {
		c.ProB = p
	}
}

// contractBlocks sets the number of the block's parameter, once all parameters are there.
func contractBlocks(c *kern.Contract) {
	for _, p := range []*kern.Prologue{c.ProA, c.ProB} {
		if p != nil {
			p.Body[0].(*kern.For).Body[0].(*kern.Strip).Body[0].(*kern.Store).Param = len(c.Params)
		}
	}
}

// A contraction whose operands are computed while they are packed has the bits of one that reads
// them from memory, whatever the types, strides, axes, direction of strips, epilogue and cut.
func TestContractPrologue(t *testing.T) {
	for _, target := range []Target{V3, V4, V4BF16} {
		t.Run(target.String(), func(t *testing.T) {
			if !contractCPU(target) {
				t.Skip("this CPU does not run the target's code")
			}
			t.Parallel()
			r := rand.New(rand.NewSource(23))
			m := ir.NewModule()
			var cs []*kern.Contract
			var ls []Launch
			for i := range 16 {
				c := contractRandom(r, i, false)
				if !contractTried(target, c) {
					continue
				}
				switch i {
				case 0: // few columns: computed turned
					c.M.Size, c.N.Size, c.K, c.Batch = 90, 4, []kern.Axis{{Size: 700, StrideA: 1, StrideB: 4}}, nil
					c.M.StrideA, c.N.StrideB, c.LenA, c.LenB = 700, 1, 90*700, 4*700
				case 1: // several K blocks and tiles
					c.M.Size, c.N.Size, c.K, c.Batch = 31, 150, []kern.Axis{{Size: 1700, StrideA: 1, StrideB: 150}}, nil
					c.M.StrideA, c.N.StrideB, c.LenA, c.LenB = 1700, 1, 31*1700, 150*1700
				case 3: // few rows: B would be read where it lies
					c.M.Size, c.N.Size, c.K, c.Batch = 5, 333, []kern.Axis{{Size: 200, StrideA: 1, StrideB: 333}}, nil
					c.M.StrideA, c.N.StrideB, c.LenA, c.LenB = 200, 1, 5*200, 333*200
				}
				c.M.StrideC, c.N.StrideC = c.N.Size, 1
				c.LenC = c.M.Size * c.N.Size
				for j := len(c.Batch) - 1; j >= 0; j-- {
					c.Batch[j].StrideC = c.LenC
					c.LenC *= c.Batch[j].Size
				}
				if i%3 > 0 {
					contractAddEpilogue(c)
				}
				if i%4 != 3 {
					contractAddPrologue(c, 0, r.Intn(2) == 0)
				}
				if i%4 > 0 {
					contractAddPrologue(c, 1, r.Intn(2) == 0)
				}
				contractBlocks(c)
				require.NoError(t, kern.CheckContract(c))
				_, own := c.Shape()
				if i%5 == 0 {
					own.Numbers = nil // these in the code
				}
				l, err := emitContract(m, c, target, c.Name, own)
				require.NoError(t, err)
				l[0].Own = ownBytes(own)
				cs, ls = append(cs, c), append(ls, l...)
			}
			require.NotEmpty(t, cs)
			lib := contractLib(t, m)
			for i, c := range cs {
				operand := [2]*contractBuf{newContractBuf(c.A, c.LenA), newContractBuf(c.B, c.LenB)}
				var args []unsafe.Pointer
				for side, pro := range []*kern.Prologue{c.ProA, c.ProB} {
					contractFill(r, operand[side], [...]int64{c.LenA, c.LenB}[side])
					if pro == nil {
						args = append(args, operand[side].base())
					}
				}
				out := newContractBuf(c.Out, c.LenC)
				if c.Epilogue == nil {
					args = append(args, out.base())
				}
				var params, want [][]byte
				for _, p := range c.Params {
					buf := newContractBuf(p.DType, p.Len)
					for j := range p.Len {
						if p.DType == dtype.U32 {
							*(*uint32)(buf.at(j)) = r.Uint32()
						} else {
							buf.set(j, r.NormFloat64())
						}
					}
					args = append(args, buf.base())
					data := unsafe.Slice((*byte)(buf.base()), p.Len*p.DType.Size())
					params, want = append(params, data), append(want, append([]byte{}, data...))
				}
				args = append(args, unsafe.Pointer(unsafe.SliceData(ls[i].Own)))
				for side, pro := range []*kern.Prologue{c.ProA, c.ProB} {
					if pro != nil {
						data, err := c.Operand(side, want)
						require.NoError(t, err)
						copy(unsafe.Slice((*byte)(operand[side].base()), len(data)), data)
					}
				}
				batches := int64(1)
				for _, a := range c.Batch {
					batches *= a.Size
				}
				acc, plain := newContractBuf(c.Acc, batches*c.M.Size*c.N.Size), newContractBuf(c.Out, c.LenC)
				contractReference(c, operand[0], operand[1], func(b, x, y, off int64, v float64) {
					acc.set((b*c.M.Size+x)*c.N.Size+y, v)
					if c.Epilogue == nil {
						plain.set(off, v)
					}
				})
				if c.Epilogue != nil {
					contractInterpret(t, c, unsafe.Slice((*byte)(acc.base()), batches*c.M.Size*c.N.Size*c.Acc.Size()), want)
				}
				scratch := newContractBuf(dtype.U8, ScratchBytes)
				for lo, tiles := int64(0), ls[i].Tiles; lo < tiles; {
					hi := lo + 1 + r.Int63n(tiles-lo)
					for j := range scratch.data {
						scratch.data[j] = 0xff // NaN, whatever the type
					}
					contractRun(t, lib, c.Name, args, lo, hi, scratch.base())
					lo = hi
				}
				for j, p := range c.Params {
					require.NoError(t, emitSame(p.DType, params[j], want[j]), "%d: %s of %s", i, p.Name, c.Text())
				}
				if c.Epilogue == nil {
					n := c.LenC * c.Out.Size()
					require.NoError(t, emitSame(c.Out, unsafe.Slice((*byte)(out.base()), n), unsafe.Slice((*byte)(plain.base()), n)), "%d: %s", i, c.Text())
				}
			}
		})
	}
}

// Kernels that differ in a prologue are different, those that differ in names or ids share code.
func TestContractPrologueShape(t *testing.T) {
	make1 := func(alongK bool) *kern.Contract {
		c := contractRandom(rand.New(rand.NewSource(4)), 0, false)
		contractAddPrologue(c, 0, alongK)
		contractBlocks(c)
		return c
	}
	a, own := make1(true).Shape()
	b, _ := make1(true).Shape()
	other, _ := make1(false).Shape()
	require.Equal(t, a, b)
	require.NotEqual(t, a, other)
	require.Equal(t, []uint32{7}, own.IDs)
	c := make1(true)
	c.ProA = nil
	plain, _ := c.Shape()
	require.NotEqual(t, a, plain)
}
