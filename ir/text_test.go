package ir_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes"
)

// roundTrip: the text of a module reads back to a module of the same text.
func roundTrip(t *testing.T, m *ir.Module) *ir.Module {
	t.Helper()
	text := m.String()
	back, err := ir.Parse(ops.Table(), "text.ir", text)
	require.NoError(t, err, text)
	require.Equal(t, text, back.String())
	return back
}

// builtins is each builtin model, for training and for inference, at a small shape.
func builtins(t testing.TB) map[string]*ir.Module {
	t.Helper()
	out := map[string]*ir.Module{}
	for _, spec := range []string{
		"mlp,layers=1,in=8,hidden=16,classes=4,batch=4,dropout=0.1,micro=2",
		"gpt,layers=1,d=16,heads=2,seq=8,batch=2,vocab=16",
		"gpt2-124m,layers=1,d=16,heads=2,seq=8,batch=2,vocab=16",
		"llama,layers=1,d=16,heads=4,kv_heads=2,hidden=24,seq=8,batch=2,vocab=16",
		"moe,layers=1,d=16,heads=2,experts=4,hidden=16,seq=8,batch=2,vocab=16",
		"cnn,size=8,width=4,classes=4,batch=4,optimizer=lion",
		"resnet,size=8,width=4,blocks=1,classes=4,batch=4",
		"lstm,d=8,hidden=8,seq=4,batch=2,vocab=16",
	} {
		name, _, _ := strings.Cut(spec, ",")
		u, err := nn.ParseBuiltin(spec)
		require.NoError(t, err)
		out[name+"/train"], err = u.Train()
		require.NoError(t, err)
		out[name+"/infer"], err = u.Infer()
		require.NoError(t, err)
	}
	return out
}

func TestRoundTripBuiltins(t *testing.T) {
	for name, m := range builtins(t) {
		t.Run(name, func(t *testing.T) {
			roundTrip(t, m)
			roundTrip(t, m.Clone())
			require.NoError(t, passes.Run(m, ops.Table(), passes.Options{}))
			roundTrip(t, m)
		})
	}
}

// corners is texts in canonical form: each reads back to itself.
func corners() map[string]string {
	return map[string]string{
		"constants": `module "constants"

func @step() -> (a, b, c, d, e, f, g, h, i, j, k, l, m, n) {
  %0 = constant {value=dense(bool[3]: true, false, true)} : bool[3] loc(c)
  %1 = constant {value=dense(i8[2]: -128, 127)} : i8[2] loc(c)
  %2 = constant {value=dense(i16[2]: -32768, 32767)} : i16[2] loc(c)
  %3 = constant {value=dense(i32[2]: -2147483648, 2147483647)} : i32[2] loc(c)
  %4 = constant {value=dense(i64[2]: -9223372036854775808, 9223372036854775807)} : i64[2] loc(c)
  %5 = constant {value=dense(u8[2]: 0, 255)} : u8[2] loc(c)
  %6 = constant {value=dense(u16[2]: 0, 65535)} : u16[2] loc(c)
  %7 = constant {value=dense(u32[2]: 0, 4294967295)} : u32[2] loc(c)
  %8 = constant {value=dense(u64[2]: 0, 18446744073709551615)} : u64[2] loc(c)
  %9 = constant {value=dense(f16[3]: 0x3c00, 0x8000, 0x7e01)} : f16[3] loc(c)
  %10 = constant {value=dense(bf16[2]: 0x3f80, 0xff80)} : bf16[2] loc(c)
  %11 = constant {value=dense(f32[8]: 1, -0, 0.1, 1e-45, 3.4028235e+38, 0x7fc00001, 0x7f800000, 0xff800000)} : f32[8] loc(c)
  %12 = constant {value=dense(f64[6]: 1, -0, 0.1, 5e-324, 0x7ff8000000000002, 0xfff0000000000000)} : f64[6] loc(c)
  %13 = constant {value=dense(key[]: x"0100000000000000020000000300000a")} : key[] loc(c)
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13
}
`,
		"shapes of constants": `module "shapes of constants"

func @step() -> (a, b, c, d, e, f) {
  %0 = constant {value=dense(f32[]: -0)} : f32[] loc(c)
  %1 = constant {value=dense(f32[2,0]: )} : f32[2,0] loc(c)
  %2 = constant {value=dense(f32[100,3]: splat 0x7fc00000)} : f32[100,3] loc(c)
  %3 = constant {value=dense(i8[33]: x"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20")} : i8[33] loc(c)
  %4 = constant {value=dense(i32[1,1,2]: 1, 2)} : i32[1,1,2] loc(c)
  %5 = constant {value=dense(bool[2]: splat true)} : bool[2] loc(c)
  return %0, %1, %2, %3, %4, %5
}
`,
		"regions": `module "regions" {stage="grouped"}

func @step(%p: bool[], %n: i32[], %x: f32[2] {feed="normal", role="input"}) -> (y, z) {
  %y = if %p, %x : f32[2] loc(outer) (%a: f32[2]) {
    %turns = constant {value=dense(i32[]: 3)} : i32[] loc(inner)
    %i, %v = while %turns, %a : i32[], f32[2] loc(inner) (%c: i32[], %d: f32[2]) {
      %zero = constant {value=dense(i32[]: 0)} : i32[] loc(inner)
      %more = compare %c, %zero {dir="gt"} : bool[] loc(inner)
      yield %more
    } (%c2: i32[], %d2: f32[2]) {
      %one = constant {value=dense(i32[]: 1)} : i32[] loc(inner)
      %less = sub %c2, %one : i32[] loc(inner)
      %half = mul %d2, %d2 : f32[2] loc(inner)
      yield %less, %half
    }
    yield %v
  } (%b: f32[2]) {
    yield %b
  }
  %f = fused %x, %y : f32[2] loc(fused) (%u: f32[2], %w: f32[2]) {
    %s = add %u, %w : f32[2] loc(in.a)
    yield %s
  }
  return %y, %f
}
`,
		"clones": `module "clones"

func @step(%x: f32[4], %k: key[]) -> (y, z) {
  %a = exp %x : f32[4] loc(act)
  %d = dropout %a, %k {p=0.25, rng=3} : f32[4] !keyed loc(drop)
  %2a = exp %x : f32[4] remat(%a) loc(act~remat)
  %d2 = dropout %2a, %k {p=0.25, rng=3} : f32[4] !keyed remat(%d) loc(drop~remat)
  %d3 = dropout %d2, %k {p=0.25, rng=3} : f32[4] !keyed loc(drop~vjp)
  return %d, %d3
}
`,
		"names and places": `module "a \"quoted\" name\nof two lines" {b=true, d=f32, e="ä\x00", f=-0.0, g=nan, h=-inf, i=1e+300, ints=[-1, 2], none=[], strs=strs["a b", ""]}

func @step(%"spaces in it": f32[2] {role="param"}, %layers.0.w: f32[2], %$a/b_: f32[2]) -> ("spaces in it", ret) {
  %"%" = neg %"spaces in it" : f32[2] loc("a-b \"c\""~vjp~remat "dir with space/m.py":12)
  %"->" = neg %"%" : f32[2] loc(layers.3.mlp~vjp)
  %"ünï" = add %"->", %$a/b_ : f32[2] loc(x "m.py":1)
  %yield = add %"ünï", %layers.0.w : f32[2] loc(y)
  return %yield, %"%"
}

func @"other one"(%x: f32[2]) -> () {
  return
}
`,
	}
}

func TestRoundTripCorners(t *testing.T) {
	for name, text := range corners() {
		t.Run(name, func(t *testing.T) {
			m, err := ir.Parse(ops.Table(), "corner.ir", text)
			require.NoError(t, err)
			require.Equal(t, text, m.String())
			roundTrip(t, m.Clone())
		})
	}
}

// Comments, blank lines, missing marks, defaults that are written out, spaces anywhere: read, and not kept.
func TestReadsMoreThanItPrints(t *testing.T) {
	m, err := ir.Parse(ops.Table(), "a.ir", `// a comment
func @step ( %x:f32[ 2 , 2 ],%k : key[] )->(y){ // another
	%s=softmax %x{axis=1}:f32[2,2]loc( a )
  %n = layer_norm %s, %g, %g {eps=1e-05} : f32[2,2] loc(a)
  return %n }`)
	require.Error(t, err) // %g
	require.Nil(t, m)
	m, err = ir.Parse(ops.Table(), "a.ir", `// a comment
func @step ( %x:f32[ 2 , 2 ],%g:f32[2],%k : key[] )->(y){ // another
	%s=softmax %x{axis=1}:f32[2,2]loc( a )
  %n = layer_norm %s, %g, %g {eps=1e-05} : f32[2,2] loc(a)
  %d = dropout %n, %k {rng=1, p=0.5} : f32[2,2] loc(a "f":3)
  return %d }`)
	require.NoError(t, err)
	require.Equal(t, `module ""

func @step(%x: f32[2,2], %g: f32[2], %k: key[]) -> (y) {
  %s = softmax %x {axis=1} : f32[2,2] loc(a)
  %n = layer_norm %s, %g, %g : f32[2,2] loc(a)
  %d = dropout %n, %k {p=0.5, rng=1} : f32[2,2] !keyed loc(a "f":3)
  return %d
}
`, m.String())
}

// Numbers as names are only labels: values that are made later never meet them.
func TestNumbersAsNames(t *testing.T) {
	m, err := ir.Parse(ops.Table(), "a.ir", `
func @step(%x: f32[2]) -> (y) {
  %9 = neg %x : f32[2] loc(a)
  %2 = exp %9 : f32[2] loc(a)
  return %2
}`)
	require.NoError(t, err)
	f := m.Func("step")
	b := ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "a"})
	f.Body.Results[0] = b.Op("neg", []*ir.Value{f.Body.Results[0]})
	require.NoError(t, ir.Verify(m))
	f.Renumber()
	require.NoError(t, ir.Verify(m))
	roundTrip(t, m)
}

// Every element type's constants keep their bits, whatever they are.
func TestRoundTripBits(t *testing.T) {
	for _, d := range dtype.All() {
		for _, n := range []int64{0, 1, 2, 31, 32, 33, 100} {
			for _, splat := range []bool{false, true} {
				c := tensor.New(d, n)
				for i := range c.Data {
					c.Data[i] = byte(i*i*37 + i*101 + 255)
					if splat {
						c.Data[i] = byte(i % int(d.Size()) * 255)
					}
					if d == dtype.Bool {
						c.Data[i] &= 1
					}
				}
				m := ir.NewModule("m")
				f := m.NewFunc("step")
				b := ir.NewBuilder(ops.Table(), f.Body, ir.Loc{Layer: "a"})
				f.Body.Results, f.Results = []*ir.Value{b.Op("constant", nil, ir.A("value", c))}, []string{"c"}
				back := roundTrip(t, m).Func("step").Body.Ops[0].Attrs.Tensor("value")
				require.True(t, tensor.Equal(c, back), "%v[%d]", d, n)
			}
		}
	}
	for _, x := range []float64{0, math.Copysign(0, -1), 1, 0.1, -1e-310, 1e22, 123456789, math.Inf(1), math.Inf(-1), math.MaxFloat64} {
		m := ir.NewModule("m")
		m.Attrs = ir.MakeAttrs(ir.A("x", x))
		m.NewFunc("step")
		back := roundTrip(t, m).Attrs.Get("x")
		require.Equal(t, math.Float64bits(x), math.Float64bits(back.(float64)), "%v", x)
	}
}

// badTexts is texts with what is said of them.
func badTexts() []struct{ text, want string } {
	f := func(body string) string {
		return "func @step(%x: f32[2,3], %k: key[]) -> (y) {\n" + body + "\n}"
	}
	op := func(line string) string { return f("  " + line + "\n  return %y") }
	return []struct{ text, want string }{
		{"", `bad.ir:1:1: no function`},
		{"module \"m\"", `bad.ir:1:11: no function`},
		{"module m", `bad.ir:1:8: want the module's name in quotes, found "m"`},
		{"module \"m", `bad.ir:1:8: string without an end`},
		{"fun @f", `bad.ir:1:1: want "func", found "fun"`},
		{"func f", `bad.ir:1:6: want a function's name (@step), found "f"`},
		{"func @", `bad.ir:1:6: a name must follow "@"`},
		{"func @f() -> () { return }\nfunc @f() -> () { return }", `bad.ir:2:6: a second function @f`},
		{"func @f(x: f32[]) -> () { return }", `bad.ir:1:9: want a parameter (%x), found "x"`},
		{"func @f(%x f32[]) -> () { return }", `bad.ir:1:12: want ":", found "f32"`},
		{"func @f(%x: f33[]) -> () { return }", `bad.ir:1:13: unknown element type "f33": want one of [bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 key]`},
		{"func @f(%x: f32) -> () { return }", `bad.ir:1:16: want "[", found ")"`},
		{"func @f(%x: f32[-1]) -> () { return }", `bad.ir:1:17: size "-1" is not a whole number of at least 0`},
		{"func @f(%x: f32[a]) -> () { return }", `bad.ir:1:17: size "a" is not a whole number of at least 0`},
		{"func @f(%x: f32[99999999999999999999]) -> () { return }", `bad.ir:1:17: size "99999999999999999999" is not a whole number of at least 0`},
		{"func @f(%x: f32[9999999999,9999999999]) -> () { return }", `bad.ir:1:13: type of more than 2^46 bytes`},
		{"func @f(%x: f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]) -> () { return }", `bad.ir:1:13: 17 dimensions, at most 16 are allowed`},
		{"func @f(%x: f32[], %x: f32[]) -> () { return }", `bad.ir:1:20: %x is defined twice`},
		{"func @f(%x: f32[] {role=param}) -> () { return }", `bad.ir:1:25: "param" is no number, word, string, list or dense(…)`},
		{"func @f(%x: f32[] {a=1, a=2}) -> () { return }", `bad.ir:1:25: attribute "a" twice`},
		{"func @f(%x: f32[] {a=[1.5]}) -> () { return }", `bad.ir:1:23: "1.5" is not a whole number`},
		{"func @f(%x: f32[] {a=}) -> () { return }", `bad.ir:1:22: want an attribute's value, found "}"`},
		{"func @f(%x: f32[]) -> (y, y) { return %x, %x }", `bad.ir: @f: result name "y" is empty or taken (V5)`},
		{"func @f(%x: f32[]) -> (y) { return }", `bad.ir: @f: 1 result names for 0 results (V5)`},
		{"func @f(%x: f32[]) -> (y) { return %x", `bad.ir:1:38: want "}", found the end of the file`},
		{"func @f(%x: f32[]) -> (y) { ", `bad.ir:1:29: want an operation or "return", found the end of the file`},
		{"func @f(%x: f32[]) -> (y) { yield %x }", `bad.ir:1:29: unknown operation "yield"`},
		{"func @f(%x: f32[]) -> (y) { return %x } ?", `bad.ir:1:41: want "func", found "?"`},
		{f("  return %z"), `bad.ir:2:10: %z is not defined before its use`},
		{op("%y = frob %x : f32[2,3] loc(a)"), `bad.ir:2:8: unknown operation "frob"`},
		{op("%y = neg %z : f32[2,3] loc(a)"), `bad.ir:2:12: %z is not defined before its use`},
		{op("%y = neg %x : f32[2,3]"), `bad.ir:3:3: loc(layer) is missing after neg`},
		{op("%y = neg %x : f32[2,3] loc()"), `bad.ir:2:30: want a layer path, found ")"`},
		{op(`%y = neg %x : f32[2,3] loc(a "f")`), `bad.ir:2:35: want ":", found ")"`},
		{op(`%y = neg %x : f32[2,3] loc(a~)`), `bad.ir:2:32: want a provenance, found ")"`},
		{op("%y = neg %x : f32[3,2] loc(a)"), `bad.ir:2:3: neg gives f32[2,3], not f32[3,2]`},
		{op("%y = neg %x loc(a)"), `bad.ir:2:3: neg has 1 results, but 1 names and 0 types are written`},
		{op("%y, %z = neg %x : f32[2,3] loc(a)"), `bad.ir:2:3: neg has 1 results, but 2 names and 1 types are written`},
		{op("%x = neg %x : f32[2,3] loc(a)"), `bad.ir:2:3: %x is defined twice`},
		{op("%y = neg %x, %x : f32[2,3] loc(a)"), `bad.ir:2:3: layer a: neg: 2 operands, want [x]`},
		{op("%y = neg %x {a=1} : f32[2,3] loc(a)"), `bad.ir:2:3: layer a: neg: unknown attribute "a", want one of []`},
		{op("%y = softmax %x : f32[2,3] loc(a)"), `bad.ir:2:3: layer a: softmax: attribute "axis" is missing (the axis)`},
		{op("%y = softmax %x {axis=1.5} : f32[2,3] loc(a)"), `bad.ir:2:3: layer a: softmax: attribute "axis" is float, want int`},
		{op("%y = softmax %x {axis=2} : f32[2,3] loc(b.c)"), `bad.ir:2:3: layer b.c: softmax: axis 2 of operand f32[2,3] (constraint softmax/C2: axis is a dimension of x)`},
		{op("%y = neg %x : f32[2,3] !keyed loc(a)"), `bad.ir:2:26: neg has the marks "", not " !keyed"`},
		{op("%y = dropout %x, %k {p=0.5, rng=1} : f32[2,3] !writes loc(a)"), `bad.ir:2:49: dropout has the marks " !keyed", not " !writes"`},
		{op("%y = neg %x : f32[2,3] remat(%x) loc(a)"), `bad.ir:2:32: remat( ) wants one value that an operation has made`},
		{op("%y = constant {value=dense(f32[2]: 1)} : f32[2] loc(a)"), `bad.ir:2:30: 1 elements, want 2 for f32[2]`},
		{op("%y = constant {value=dense(i8[1]: 128)} : i8[1] loc(a)"), `bad.ir:2:37: element "128" of i8: strconv.ParseInt: parsing "128": value out of range`},
		{op("%y = constant {value=dense(i8[1]: 0x100)} : i8[1] loc(a)"), `bad.ir:2:37: "0x100" does not fit i8`},
		{op("%y = constant {value=dense(f16[1]: 1.5)} : f16[1] loc(a)"), `bad.ir:2:38: element "1.5" of f16: write f16 elements as bits (0x…)`},
		{op("%y = constant {value=dense(i8[2]: x\"00\")} : i8[2] loc(a)"), `bad.ir:2:38: want 2 bytes in hexadecimal for i8[2]`},
		{op("%y = constant {value=dense(key[]: 0)} : key[] loc(a)"), `bad.ir:2:30: a key is written as bytes: x"…"`},
		{op("%y = constant {value=dense(f32[999999,9999]: splat 0)} : f32[1] loc(a)"), `bad.ir:2:30: constant of more than 2^31 bytes`},
		{op("%y = constant {value=dense(f32[9999,9999]: splat 0)} : f32[1] loc(a)"), `bad.ir:2:30: splat of more than 2^28 bytes: broadcast a scalar instead`},
		{f("  %y = fused %x : f32[2,3] loc(a) (%u: f32[2,3]) {\n    %v = neg %x : f32[2,3] loc(a)\n    yield %v\n  }\n  return %y"),
			`bad.ir:3:14: %x is not visible here: a region sees its own parameters only`},
		{f("  %y = fused %x : f32[2,3] loc(a) (%u: f32[2,3]) {\n    return %u\n  }\n  return %y"), `bad.ir:3:5: unknown operation "return"`},
	}
}

func TestParseErrors(t *testing.T) {
	for i, c := range badTexts() {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			m, err := ir.Parse(ops.Table(), "bad.ir", c.text)
			require.Nil(t, m)
			require.EqualError(t, err, c.want, c.text)
			require.Contains(t, []string{"parse", "shape", "verify"}, diag.As(err).Code)
		})
	}
	deep := "func @f(%x: f32[]) -> (y) {\n" + strings.Repeat("%y = fused %x : f32[] loc(a) (%x: f32[]) {\n", 70)
	_, err := ir.Parse(ops.Table(), "bad.ir", deep)
	require.ErrorContains(t, err, "defined twice")
	var b strings.Builder
	b.WriteString("func @f(%x0: f32[]) -> (y) {\n")
	for i := range 70 {
		fmt.Fprintf(&b, "%%y%d = fused %%x%d : f32[] loc(a) (%%x%d: f32[]) {\n", i, i, i+1)
	}
	_, err = ir.Parse(ops.Table(), "bad.ir", b.String())
	require.EqualError(t, err, "bad.ir:66:1: regions nested more than 64 deep")
}

// FuzzParse: no text makes the parser panic; what it reads prints to a text that reads back to itself.
func FuzzParse(f *testing.F) {
	for _, text := range corners() {
		f.Add(text)
	}
	for _, c := range badTexts() {
		f.Add(c.text)
	}
	for _, m := range builtins(f) {
		if text := m.String(); len(text) < 1<<14 {
			f.Add(text)
		}
	}
	table := ops.Table()
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		m, err := ir.Parse(table, "fuzz.ir", text)
		if err != nil {
			require.NotEmpty(t, diag.As(err).Message)
			return
		}
		printed := m.String()
		back, err := ir.Parse(table, "fuzz.ir", printed)
		require.NoError(t, err, printed)
		require.Equal(t, printed, back.String())
	})
}

// broken changes a good module so that it breaks one rule of the verifier.
type broken struct {
	label string
	do    func(m *ir.Module, f *ir.Func)
}

const good = `
func @step(%w: f32[4] {role="param"}, %x: f32[4], %k: key[], %p: bool[]) -> (w, y) {
  %a = exp %x : f32[4] loc(act)
  %b = neg %a : f32[4] loc(act)
  %d = dropout %b, %k {p=0.25, rng=3} : f32[4] !keyed loc(drop)
  %i = if %p, %x : f32[4] loc(branch) (%u: f32[4]) {
    %n = neg %u : f32[4] loc(branch)
    yield %n
  } (%v: f32[4]) {
    yield %v
  }
  %c = exp %x : f32[4] remat(%a) loc(act~remat)
  %e = dropout %c, %k {p=0.25, rng=4} : f32[4] !keyed loc(drop)
  return %d, %e
}`

func TestVerifierRefuses(t *testing.T) {
	op := func(f *ir.Func, i int) *ir.Op { return f.Body.Ops[i] }
	region := func(f *ir.Func) *ir.Block { return op(f, 3).Regions[0] }
	for _, c := range []broken{
		{"V1", func(_ *ir.Module, f *ir.Func) { f.Body.Ops[0], f.Body.Ops[1] = f.Body.Ops[1], f.Body.Ops[0] }},
		{"V1", func(_ *ir.Module, f *ir.Func) { region(f).Ops[0].Operands[0] = f.Body.Params[1] }},
		{"V1", func(_ *ir.Module, f *ir.Func) { region(f).Results[0] = f.Body.Params[1] }},
		{"V1", func(_ *ir.Module, f *ir.Func) { f.Body.Results[1] = region(f).Params[0] }},
		{"V1", func(_ *ir.Module, f *ir.Func) { op(f, 0).Results[0].ID = 99 }},
		{"V1", func(_ *ir.Module, f *ir.Func) { op(f, 0).Block = region(f) }},
		{"V1", func(_ *ir.Module, f *ir.Func) { op(f, 0).Results[0].Op = op(f, 1) }},
		{"V1", func(_ *ir.Module, f *ir.Func) { region(f).Owner = op(f, 0) }},
		{"V1", func(_ *ir.Module, f *ir.Func) { f.Body.Params[0].Block = region(f) }},
		{"V2", func(_ *ir.Module, f *ir.Func) { op(f, 0).Results[0].Name = "x" }},
		{"V2", func(_ *ir.Module, f *ir.Func) { region(f).Params[0].Name = "a" }},
		{"V2", func(_ *ir.Module, f *ir.Func) { op(f, 0).Results[0].Name = "" }},
		{"V2", func(m *ir.Module, f *ir.Func) { m.NewFunc("step") }},
		{"V2", func(m *ir.Module, f *ir.Func) { f.Name = "" }},
		{"V3", func(_ *ir.Module, f *ir.Func) { op(f, 0).Loc.Layer = "" }},
		{"V3", func(_ *ir.Module, f *ir.Func) { region(f).Ops[0].Loc = ir.Loc{File: "m.py", Line: 1} }},
		{"V4", func(_ *ir.Module, f *ir.Func) { op(f, 0).Results[0].Type = ir.T(dtype.F32, 5) }},
		{"V4", func(_ *ir.Module, f *ir.Func) { op(f, 0).Results = nil }},
		{"V4", func(_ *ir.Module, f *ir.Func) { op(f, 0).Operands = nil }},
		{"V4", func(_ *ir.Module, f *ir.Func) { op(f, 2).Attrs = op(f, 2).Attrs.Set("p", 1.5) }},
		{"V4", func(_ *ir.Module, f *ir.Func) { op(f, 2).Attrs = op(f, 2).Attrs.Set("q", 1) }},
		{"V4", func(_ *ir.Module, f *ir.Func) { op(f, 3).Regions = op(f, 3).Regions[:1] }},
		{"V5", func(_ *ir.Module, f *ir.Func) { f.Results[1] = "w" }},
		{"V5", func(_ *ir.Module, f *ir.Func) { f.Results[1] = "" }},
		{"V5", func(_ *ir.Module, f *ir.Func) { f.Results = f.Results[:1] }},
		{"V5", func(_ *ir.Module, f *ir.Func) { f.Body.Params[0].Type = ir.T(dtype.F32, 5) }},
		{"V6", func(_ *ir.Module, f *ir.Func) { op(f, 4).Remat = op(f, 1) }}, // another op
		{"V6", func(_ *ir.Module, f *ir.Func) { op(f, 4).Remat = op(f, 5) }}, // a later one
		{"V6", func(_ *ir.Module, f *ir.Func) { op(f, 5).Remat = op(f, 2) }}, // other attributes
		{"V6", func(_ *ir.Module, f *ir.Func) { region(f).Ops[0].Remat = op(f, 1) }},
		{"V7", func(_ *ir.Module, f *ir.Func) { op(f, 5).Attrs = op(f, 5).Attrs.Set("rng", 3) }},
	} {
		m, err := ir.Parse(ops.Table(), "good.ir", good)
		require.NoError(t, err)
		c.do(m, m.Funcs[0])
		err = ir.Verify(m)
		require.Error(t, err, c.label)
		require.Contains(t, err.Error(), "("+c.label+")")
	}
	// A derivative, a turn of a loop that was unrolled and an op in a reader share their original's random op id.
	for _, prov := range []string{"vjp", "inline", "unroll", "fuse"} {
		m, err := ir.Parse(ops.Table(), "good.ir", good)
		require.NoError(t, err)
		e := m.Funcs[0].Body.Ops[5]
		e.Attrs, e.Loc = e.Attrs.Set("rng", 3), e.Loc.With(prov)
		require.NoError(t, ir.Verify(m))
	}
}

// A clone is equal and apart.
func TestClone(t *testing.T) {
	for name, m := range builtins(t) {
		text := m.String()
		c := m.Clone()
		require.Equal(t, text, c.String(), name)
		for _, f := range c.Funcs {
			f.Body.Ops = nil
			f.Body.Params[0].Name = "changed"
			f.Results[0] = "changed"
		}
		require.Equal(t, text, m.String(), name)
	}
}
