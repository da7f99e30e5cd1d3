package kern

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/ir/dtype"
	"reprise/ir/kern/scalar"
)

func rowSum(name string, rows, c int64) *Kernel {
	b := NewBuilder(name, rows)
	x, y := b.In("x", dtype.F32, rows*c), b.Out("y", dtype.F32, rows)
	i, s := NewVar("i", dtype.I64), NewVar("s", dtype.F32)
	v := x.At(Add(Mul(b.TileIndex(), I64(c)), Get(i)))
	b.Do(Lane(i, I64(c)).Reduce(RedSum, s, Mul(v, v)), y.Set(b.TileIndex(), Get(s)))
	return b.K
}

func TestTextIgnoresNames(t *testing.T) {
	k := rowSum("a", 2, 100)
	assert.Equal(t, `kernel tiles=2 {
  p0: in f32[200]
  p1: out f32[2]
  tile v0:i64
  strip v1:i64 < 100:i64 {
    %0 = p0[add(mul(v0, 100:i64), v1)]
    reduce v2:f32 = sum mul(%0, %0)
  }
  p1[v0] = v2
}
`, k.Text())
	other := rowSum("b", 2, 100)
	other.Params[0].Name = "z"
	assert.Equal(t, k.Text(), other.Text())
	assert.NotEqual(t, k.Text(), rowSum("a", 2, 101).Text())
}

// TestReductionOrder spells the order of docs/numerics.md out.
func TestReductionOrder(t *testing.T) {
	const c = 1000
	r := rand.New(rand.NewPCG(1, 1))
	k := rowSum("sum", 1, c)
	require.NoError(t, Check(k))
	x, y := make([]byte, 4*c), make([]byte, 4)
	var p [64]float32
	for i := range c {
		v := float32(r.NormFloat64())
		binary.LittleEndian.PutUint32(x[4*i:], math.Float32bits(v))
		p[i%64] += float32(v * v)
	}
	for s := 32; s > 0; s /= 2 {
		for i := range s {
			p[i] += p[i+s]
		}
	}
	require.NoError(t, Run(k, [][]byte{x, y}, 0, 1))
	assert.Equal(t, math.Float32bits(p[0]), binary.LittleEndian.Uint32(y))
}

func TestRunReportsBadAccess(t *testing.T) {
	b := NewBuilder("far", 3)
	x, y := b.In("x", dtype.F32, 4), b.Out("y", dtype.F32, 3)
	b.Do(y.Set(b.TileIndex(), x.At(Add(b.TileIndex(), I64(2)))))
	require.NoError(t, Check(b.K))
	err := Run(b.K, [][]byte{make([]byte, 16), make([]byte, 12)}, 0, 3)
	assert.EqualError(t, err, `kernel "far": element 4 of "x", which has 4 (tile 2)`)
	assert.EqualError(t, Run(b.K, [][]byte{make([]byte, 16)}, 0, 3), `kernel "far": 1 buffers for 2 parameters`)
	// A load whose condition is false reads nothing.
	b = NewBuilder("guarded", 1)
	x, y = b.In("x", dtype.F32, 4), b.Out("y", dtype.F32, 1)
	b.Do(y.Set(I64(0), x.AtIf(I64(99), Lt(x.At(I64(0)), F32(-1)), F32(7))))
	out := make([]byte, 4)
	require.NoError(t, Run(b.K, [][]byte{make([]byte, 16), out}, 0, 1))
	assert.Equal(t, math.Float32bits(7), binary.LittleEndian.Uint32(out))
}

func TestCheck(t *testing.T) {
	i, s, lane := NewVar("i", dtype.I64), NewVar("s", dtype.F32), NewVar("lane", dtype.F32)
	n := NewVar("n", dtype.I64)
	for _, c := range []struct {
		want string
		body func(x, y Buf) []Stmt
	}{
		{`store to parameter "x", which is only read`, func(x, y Buf) []Stmt { return []Stmt{x.Set(I64(0), F32(0))} }},
		{`variable "s" is read before it is set`, func(x, y Buf) []Stmt { return []Stmt{y.Set(I64(0), Get(s))} }},
		{`variable "s" is read before it is set`, func(x, y Buf) []Stmt {
			return []Stmt{&If{Cond: Bool(true), Then: []Stmt{Let(s, F32(1))}}, y.Set(I64(0), Get(s))}
		}},
		{`variable "s" is read before it is set`, func(x, y Buf) []Stmt {
			return []Stmt{Let(n, I64(3)), Range(i, Get(n), Let(s, F32(1))), y.Set(I64(0), Get(s))}
		}},
		{`variable "lane" is read before it is set`, func(x, y Buf) []Stmt {
			return []Stmt{Lane(i, I64(8), Let(lane, F32(1))), y.Set(I64(0), Get(lane))}
		}},
		{`strip assigns "s", which has one value for all lanes`, func(x, y Buf) []Stmt {
			return []Stmt{Let(s, F32(0)), Lane(i, I64(8), Let(s, F32(1)))}
		}},
		{`loop over "n" inside a strip: its bounds differ between lanes`, func(x, y Buf) []Stmt {
			return []Stmt{Lane(i, I64(8), Range(n, Get(i)))}
		}},
		{`strip inside a strip`, func(x, y Buf) []Stmt { return []Stmt{Lane(i, I64(8), Lane(n, I64(8)))} }},
		{`if inside a strip`, func(x, y Buf) []Stmt { return []Stmt{Lane(i, I64(8), &If{Cond: Bool(true)})} }},
		{`while inside a strip`, func(x, y Buf) []Stmt { return []Stmt{Lane(i, I64(8), &While{Cond: Bool(true)})} }},
		{`fmaflush: a kernel computes with denormals as zero everywhere or nowhere`, func(x, y Buf) []Stmt {
			return []Stmt{y.Set(I64(0), FmaFlush(F32(1), F32(2), F32(3)))}
		}},
		{`load from parameter 9 of 2`, func(x, y Buf) []Stmt { return []Stmt{y.Set(I64(0), Buf{9, dtype.F32}.At(I64(0)))} }},
		{`parameter "x" of type f32 is read as i32`, func(x, y Buf) []Stmt {
			return []Stmt{y.Set(I64(0), Convert(Buf{0, dtype.I32}.At(I64(0)), dtype.F32))}
		}},
		{`stored value has type i64, want f32`, func(x, y Buf) []Stmt { return []Stmt{&Store{Param: 1, Index: I64(0), Value: I64(0)}} }},
		{`add [f32 f64] → f32: operands of different types`, func(x, y Buf) []Stmt {
			return []Stmt{y.Set(I64(0), &Expr{Op: OpAdd, DType: dtype.F32, Args: []*Expr{F32(1), F64(1)}})}
		}},
		{`add [bf16 bf16] → bf16: no such operation on this type`, func(x, y Buf) []Stmt {
			v := Float(dtype.BF16, 1)
			return []Stmt{y.Set(I64(0), Convert(&Expr{Op: OpAdd, DType: dtype.BF16, Args: []*Expr{v, v}}, dtype.F32))}
		}},
		{``, func(x, y Buf) []Stmt {
			return []Stmt{Range(i, I64(4), Let(s, F32(1))), Lane(i, I64(4), y.Set(Get(i), Get(s))), Range(i, I64(4), y.Set(Get(i), Get(s)))}
		}},
	} {
		b := NewBuilder("k", 1)
		x, y := b.In("x", dtype.F32, 8), b.Out("y", dtype.F32, 8)
		b.Do(c.body(x, y)...)
		err := Check(b.K)
		if c.want == "" {
			assert.NoError(t, err)
			continue
		}
		assert.EqualError(t, err, `kernel "k": `+c.want)
	}
}

func TestBuildersRefuseMixedTypes(t *testing.T) {
	assert.PanicsWithValue(t, "BUG: mul [f32 i64] → f32: operands of different types", func() { Mul(F32(1), I64(1)) })
	assert.PanicsWithValue(t, "BUG: sqrt [i64] → i64: no such operation on this type", func() { Sqrt(I64(1)) })
	assert.PanicsWithValue(t, "BUG: index has type i32, want i64", func() { Buf{0, dtype.F32}.At(I32(1)) })
}

// TestIntegerEdges are the cases that C and LLVM leave undefined.
func TestIntegerEdges(t *testing.T) {
	i8 := func(x int64) *Expr { return Int(dtype.I8, x) }
	u8 := func(x int64) *Expr { return Int(dtype.U8, x) }
	for _, c := range []struct {
		name      string
		got, want *Expr
	}{
		{"x/0", Div(i8(5), i8(0)), i8(-1)},
		{"unsigned x/0", Div(u8(5), u8(0)), u8(255)},
		{"least/-1", Div(i8(-128), i8(-1)), i8(-128)},
		{"x rem 0", Rem(i8(-5), i8(0)), i8(-5)},
		{"least rem -1", Rem(i8(-128), i8(-1)), i8(0)},
		{"-7 rem 3", Rem(i8(-7), i8(3)), i8(-1)},
		{"|least|", Abs(i8(-128)), i8(-128)},
		{"shl by width", Shl(u8(255), u8(8)), u8(0)},
		{"shr by width", Shr(u8(255), u8(200)), u8(0)},
		{"arithmetic shr by width", Shr(i8(-128), i8(100)), i8(-1)},
		{"negative count", Shl(i8(1), i8(-1)), i8(0)},
		{"clz 0", Clz(u8(0)), u8(8)},
		{"mulhi", MulHi(U32(1<<31), U32(6)), U32(3)},
		{"wrap", Convert(I32(300), dtype.U8), u8(44)},
		{"sign", Convert(i8(-1), dtype.U64), U64(math.MaxUint64)},
	} {
		assert.Equal(t, OpConst, c.got.Op, c.name)
		assert.Equal(t, c.want.Bits, c.got.Bits, c.name)
	}
	for _, c := range []struct {
		x    float64
		t    dtype.Type
		want uint64
	}{{300, dtype.I8, 127}, {-300, dtype.I8, 128}, {-1.9, dtype.I8, 255}, {math.NaN(), dtype.I32, 0}, {-1, dtype.U8, 0}, {1e30, dtype.U64, math.MaxUint64},
		{1e30, dtype.I64, math.MaxInt64}, {0x1p63, dtype.U64, 1 << 63}, {math.NaN(), dtype.Bool, 1}, {0x1p-140, dtype.Bool, 1}} {
		assert.Equal(t, c.want, convert(dtype.F64, c.t, math.Float64bits(c.x)), "%v to %v", c.x, c.t)
	}
	nan := float32(math.NaN())
	assert.True(t, math.IsNaN(float64(f32(evalF32(OpMax, []uint64{b32(nan), b32(1)})))))
	assert.Equal(t, float32(1), f32(evalF32(OpMax, []uint64{b32(1), b32(1)})))
	assert.True(t, math.IsNaN(float64(f32(evalF32(OpMin, []uint64{b32(1), b32(nan)})))), "b where a is no less")
}

func TestDropoutPieces(t *testing.T) {
	k := KeyWords{U32(0x89abcdef), U32(0x01234567), U32(7), U32(3)}
	e := Random(k, 9, I64(5), I64(200))
	args := make([]uint64, 6)
	for i, a := range e.Args {
		args[i] = a.Bits
	}
	want := scalar.Random(scalar.Key{Seed: 0x0123456789abcdef, Step: 7, Micro: 3}, 9, 5, 200)
	assert.Equal(t, uint64(want), evalOp(e, args))
	assert.Equal(t, uint64(0), Kept(U32(math.MaxUint32), 1).Bits)
	assert.Equal(t, uint64(1), Kept(U32(0), 0).Bits)
	assert.Equal(t, uint64(0), Kept(U32(1<<31-1), 0.5).Bits)
	assert.Equal(t, uint64(1), Kept(U32(1<<31), 0.5).Bits)
}
