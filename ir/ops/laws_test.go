package ops_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/kern"
	"reprise/ir/ops"
	"reprise/ir/ops/convref"
	"reprise/ir/tensor"
	"reprise/passes/autodiff"
	"reprise/passes/lower"
)

// The laws hold for every row of the table. They are tried on the samples of
// samples_test.go; a row without a sample fails.

// operand is an operand of a sample: a type, in which the dtype may be open (T), and the range of
// its elements.
type operand struct {
	open   bool
	floats bool
	typ    ir.Type
	lo, hi float64
	ranged bool
}

// sample is one line of the samples.
type sample struct {
	line     string
	op       string
	operands []operand
	attrs    map[string]string
	flags    []string
}

func (s sample) has(flag string) bool { return slices.Contains(s.flags, flag) }

// parseSample reads "op(operand, …) attr=value … !flag …".
func parseSample(line string) sample {
	s := sample{line: line, attrs: map[string]string{}}
	open, end := strings.Index(line, "("), strings.Index(line, ")")
	s.op = line[:open]
	form := regexp.MustCompile(`(\w+)\[([0-9,]*)\](?:@([-0-9.e]+):([-0-9.e]+))?`)
	for _, m := range form.FindAllStringSubmatch(line[open+1:end], -1) {
		o := operand{open: m[1] == "T" || m[1] == "F", floats: m[1] == "F", lo: -2, hi: 2}
		if !o.open {
			d, err := dtype.Parse(m[1])
			if err != nil {
				panic(line + ": " + err.Error())
			}
			o.typ.DType = d
		}
		if m[2] != "" {
			for _, n := range strings.Split(m[2], ",") {
				v, _ := strconv.ParseInt(n, 10, 64)
				o.typ.Shape = append(o.typ.Shape, v)
			}
		}
		if m[3] != "" {
			o.ranged = true
			o.lo, _ = strconv.ParseFloat(m[3], 64)
			o.hi, _ = strconv.ParseFloat(m[4], 64)
		}
		s.operands = append(s.operands, o)
	}
	for _, w := range strings.Fields(line[end+1:]) {
		if k, v, ok := strings.Cut(w, "="); ok {
			s.attrs[k] = v
		} else {
			s.flags = append(s.flags, strings.TrimPrefix(w, "!"))
		}
	}
	return s
}

// attrList gives the attributes their kinds; T stands for the sample's dtype.
func (s sample) attrList(t *testing.T, def *ir.OpDef, d dtype.Type) []ir.Attr {
	var out []ir.Attr
	for _, ad := range def.Attrs {
		v, ok := s.attrs[ad.Name]
		if !ok {
			continue
		}
		var val any
		var err error
		switch ad.Kind {
		case "int":
			val, err = strconv.ParseInt(v, 10, 64)
		case "float":
			val, err = strconv.ParseFloat(v, 64)
		case "bool":
			val, err = strconv.ParseBool(v)
		case "string":
			val = v
		case "strings":
			val = strings.Split(v, ";")
		case "dtype":
			if v == "T" {
				val = d
			} else {
				val, err = dtype.Parse(v)
			}
		case "ints":
			list := []int64{}
			for _, w := range strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune("[],", r) }) {
				n, e := strconv.ParseInt(w, 10, 64)
				require.NoError(t, e, s.line)
				list = append(list, n)
			}
			val = list
		case "tensor":
			val = ops.ConvertTensor(tensor.Of([]float64{1, 2, 3, 4}, 4), d)
		}
		require.NoError(t, err, s.line)
		out = append(out, ir.A(ad.Name, val))
	}
	for name := range s.attrs {
		require.NotNil(t, slices.ContainsFunc(def.Attrs, func(a ir.AttrDef) bool { return a.Name == name }), s.line)
	}
	return out
}

// instance is a sample with its dtype chosen: a function whose only op is the sample's.
type instance struct {
	s      sample
	d      dtype.Type
	module *ir.Module
	f      *ir.Func
	op     *ir.Op
}

func here() ir.Loc { return ir.Loc{Layer: "law"} }

func newFunc(types []ir.Type) (*ir.Module, *ir.Func) {
	m := ir.NewModule("law")
	f := m.NewFunc("f")
	for i, t := range types {
		f.Body.AddParam(fmt.Sprintf("x%d", i), t)
	}
	return m, f
}

// build makes the instance of s for dtype d; an error where the row refuses d.
func (s sample) build(t *testing.T, table *ir.Table, d dtype.Type) (in *instance, err error) {
	defer diag.Catch(&err)
	def := table.Lookup(s.op)
	require.NotNil(t, def, s.line)
	var types []ir.Type
	for _, o := range s.operands {
		typ := o.typ
		if o.open {
			typ.DType = d
		}
		types = append(types, typ)
	}
	m, f := newFunc(types)
	op := ir.NewBuilder(table, f.Body, here()).Multi(s.op, slices.Clone(f.Body.Params), nil, s.attrList(t, def, d)...)
	f.Body.Results = op.Results
	for i := range op.Results {
		f.Results = append(f.Results, fmt.Sprintf("y%d", i))
	}
	return &instance{s, d, m, f, op}, nil
}

// dtypesOf are the dtypes that a sample is tried with.
func (s sample) dtypes() []dtype.Type {
	for _, o := range s.operands {
		if o.floats {
			return []dtype.Type{dtype.F32, dtype.F64, dtype.BF16}
		}
		if o.open {
			return []dtype.Type{dtype.F32, dtype.F64, dtype.F16, dtype.BF16, dtype.I8, dtype.I16, dtype.I32, dtype.I64,
				dtype.U8, dtype.U16, dtype.U32, dtype.U64, dtype.Bool}
		}
	}
	for _, v := range s.attrs {
		if v == "T" {
			return []dtype.Type{dtype.F32, dtype.F64, dtype.BF16, dtype.I32, dtype.U8, dtype.Bool}
		}
	}
	return []dtype.Type{dtype.F32}
}

// instances are a sample's instances for all dtypes that its row takes.
func (s sample) instances(t *testing.T, table *ir.Table) []*instance {
	var out []*instance
	var last error
	for _, d := range s.dtypes() {
		in, err := s.build(t, table, d)
		if err != nil {
			last = err
			continue
		}
		require.NoError(t, ir.Verify(in.module), s.line)
		out = append(out, in)
	}
	require.NotEmpty(t, out, "%s: no dtype fits: %v", s.line, last)
	return out
}

// fill makes data for an operand; wild data has NaN, infinities, zeros of both signs, denormals and ties.
func fill(rng *rand.Rand, o operand, t ir.Type, wild bool) *tensor.Tensor {
	x := tensor.New(t.DType, t.Shape...)
	if t.DType == dtype.Key {
		return tensor.Key(0x123456789abcdef, 3, 1)
	}
	n := x.Len()
	vals := make([]float64, n)
	special := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1e-41, -1e-41, 1, 1, -1, 3e38, 1e-30, 65504, 6e-8}
	for i := range vals {
		switch {
		case t.DType.IsFloat() && wild && !o.ranged && rng.IntN(2) == 0:
			vals[i] = special[rng.IntN(len(special))]
		case t.DType.IsFloat():
			vals[i] = o.lo + rng.Float64()*(o.hi-o.lo)
		case t.DType == dtype.Bool:
			vals[i] = float64(rng.IntN(2))
		default:
			lo, hi := math.Ceil(o.lo), math.Floor(o.hi)
			if !o.ranged {
				lo, hi = -5, 6
			}
			if t.DType.IsUnsigned() {
				lo = max(lo, 0)
			}
			vals[i] = lo + float64(rng.IntN(int(max(hi-lo, 0))+1))
		}
	}
	x = ops.ConvertTensor(tensor.Of(vals, t.Shape...), t.DType)
	if wild && t.DType.IsInt() && !o.ranged {
		for i := range n {
			if rng.IntN(4) == 0 { // extremes
				x.SetBits(i, []uint64{0, ^uint64(0), 1 << (8*t.DType.Size() - 1), 1<<(8*t.DType.Size()-1) - 1}[rng.IntN(4)])
			}
		}
	}
	return x
}

func (in *instance) data(rng *rand.Rand, wild bool) []*tensor.Tensor {
	var out []*tensor.Tensor
	for i, o := range in.s.operands {
		out = append(out, fill(rng, o, in.op.In(i), wild))
	}
	return out
}

// sameBits compares tensors; any NaN equals any other.
func sameBits(want, got *tensor.Tensor) error {
	if want.DType != got.DType || !slices.Equal(want.Shape, got.Shape) {
		return fmt.Errorf("%v%v, want %v%v", got.DType, got.Shape, want.DType, want.Shape)
	}
	if want.DType == dtype.Key {
		if string(want.Data) != string(got.Data) {
			return fmt.Errorf("another key")
		}
		return nil
	}
	for i := range want.Len() {
		a, b := want.Bits(i), got.Bits(i)
		if a != b && !(isNaN(want, i) && isNaN(got, i)) {
			return fmt.Errorf("element %d is %v (%#x), want %v (%#x)", i, got.Float(i), b, want.Float(i), a)
		}
	}
	return nil
}

func isNaN(t *tensor.Tensor, i int64) bool {
	b := t.Bits(i)
	switch t.DType {
	case dtype.F16:
		return b&0x7c00 == 0x7c00 && b&0x3ff != 0
	case dtype.BF16, dtype.F32, dtype.F64:
		return math.IsNaN(t.Float(i))
	}
	return false
}

// eachInstance runs f for all samples of all rows, as a subtest for each row.
func eachInstance(t *testing.T, f func(t *testing.T, table *ir.Table, in *instance)) {
	table := ops.Table()
	byOp := map[string][]sample{}
	for _, s := range samples() {
		byOp[s.op] = append(byOp[s.op], s)
	}
	for _, def := range table.All() {
		if len(byOp[def.Name]) == 0 {
			continue
		}
		t.Run(def.Name, func(t *testing.T) {
			t.Parallel()
			for _, s := range byOp[def.Name] {
				for _, in := range s.instances(t, table) {
					f(t, table, in)
				}
			}
		})
	}
}

// Every row has a sample, or stands in a program of programs().
func TestEveryRowIsTried(t *testing.T) {
	table := ops.Table()
	tried := map[string]bool{}
	for _, s := range samples() {
		tried[s.op] = true
	}
	for name := range programs() {
		tried[name] = true
	}
	for _, def := range table.All() {
		assert.True(t, tried[def.Name], "%s: no sample", def.Name)
	}
}

// Rows are complete and say what they are.
func TestRowsAreWellFormed(t *testing.T) {
	table := ops.Table()
	again := ops.Table()
	lower := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	kinds := []string{"int", "float", "bool", "string", "ints", "strings", "dtype", "tensor"}
	for i, d := range table.All() {
		assert.Equal(t, d.Name, again.All()[i].Name, "the table is a pure function")
		assert.Regexp(t, lower, d.Name)
		assert.NotEmpty(t, d.Family, d.Name)
		assert.NotEmpty(t, d.Doc, d.Name)
		assert.NotNil(t, d.Infer, d.Name)
		assert.True(t, d.Ref != nil || d.HandScheduled != "", "%s: no reference semantics and no reason", d.Name)
		assert.True(t, d.Elem != nil || d.Kern != nil || d.Expand != nil || d.HandScheduled != "", "%s: no kernel and no reason", d.Name)
		if d.VJP == nil {
			assert.NotEmpty(t, d.NoGrad, "%s: no VJP and no reason", d.Name)
		}
		labels := map[string]bool{}
		for _, c := range d.Constraints {
			assert.False(t, labels[c.Label], "%s/%s twice", d.Name, c.Label)
			assert.Regexp(t, `^C[0-9]+$`, c.Label, d.Name)
			assert.NotEmpty(t, c.Text, "%s/%s", d.Name, c.Label)
			labels[c.Label] = true
		}
		seen := map[string]bool{}
		for _, a := range d.Attrs {
			assert.False(t, seen[a.Name], "%s: attribute %s twice", d.Name, a.Name)
			assert.Contains(t, kinds, a.Kind, "%s: attribute %s", d.Name, a.Name)
			assert.NotEmpty(t, a.Doc, "%s: attribute %s", d.Name, a.Name)
			seen[a.Name] = true
		}
	}
}

// Inferred types are those of the reference's results; effects and determinism are of the classes; an op with an effect
// that is not communication has no derivative; the reference is deterministic and leaves its operands alone.
func TestReferenceMatchesInference(t *testing.T) {
	eachInstance(t, func(t *testing.T, table *ir.Table, in *instance) {
		op := in.op
		assert.LessOrEqual(t, op.Det(), ir.Unknown)
		assert.LessOrEqual(t, op.Effect(), ir.EffectHost)
		if e := op.Effect(); e != ir.EffectNone && e != ir.EffectComm {
			assert.Nil(t, op.Def.VJP, "%s has effect %s and a derivative", op.Name(), e)
		}
		c := ir.CostOf(op)
		assert.True(t, c.Flops >= 0 && c.Bytes >= 0, in.s.line)
		if in.s.has("noref") {
			return
		}
		for _, wild := range []bool{false, true} {
			rng := rand.New(rand.NewPCG(1, 2))
			args := in.data(rng, wild)
			var before []*tensor.Tensor
			for _, a := range args {
				before = append(before, a.Clone())
			}
			out, err := interp.Run(in.f, args)
			require.NoError(t, err, in.s.line)
			again, err := interp.Run(in.f, args)
			require.NoError(t, err, in.s.line)
			for i := range out {
				assert.True(t, tensor.Equal(out[i], again[i]), "%s: another result the second time", in.s.line)
			}
			for i := range args {
				assert.True(t, tensor.Equal(args[i], before[i]), "%s: operand %d changed", in.s.line, i)
			}
		}
	})
}

// Kernels (by Elem or Kern) and the kernels' interpreter give the reference's bits.
func TestKernelsMatchReference(t *testing.T) {
	eachInstance(t, func(t *testing.T, table *ir.Table, in *instance) {
		def := in.op.Def
		if def.Elem == nil && def.Kern == nil || in.s.has("noref") || lower.IsView(in.op) || lower.IsConstant(in.op) {
			return
		}
		for _, wild := range []bool{false, true} {
			args := in.data(rand.New(rand.NewPCG(3, 4)), wild)
			want, err := interp.Run(in.f, args)
			require.NoError(t, err, in.s.line)
			l, err := lower.Op(in.op)
			require.NoError(t, err, in.s.line)
			got, ok := runLaunches(t, in, l, args)
			if !ok {
				return
			}
			for i := range want {
				assert.NoError(t, sameBits(want[i], got[i]), "%s as %v, result %d, wild %v", in.s.line, in.d, i, wild)
			}
		}
	})
}

// runLaunches runs kernels of the loop language; false where an op's kernels are of a hand-scheduled family.
func runLaunches(t *testing.T, in *instance, l *lower.Lowered, args []*tensor.Tensor) ([]*tensor.Tensor, bool) {
	var out []*tensor.Tensor
	for _, r := range in.op.Results {
		o := tensor.New(r.Type.DType, r.Type.Shape...)
		for i := range o.Data {
			o.Data[i] = 0xa5 // a kernel does not count on zeros
		}
		out = append(out, o)
	}
	var work [][]byte
	for _, n := range l.Workspaces {
		w := make([]byte, n)
		for i := range w {
			w[i] = 0x5a
		}
		work = append(work, w)
	}
	for _, launch := range l.Launches {
		if launch.Kern == nil {
			return nil, false
		}
		var bufs [][]byte
		for _, r := range launch.Args {
			switch r.Kind {
			case lower.Operand:
				bufs = append(bufs, args[r.Index].Data)
			case lower.Result:
				bufs = append(bufs, out[r.Index].Data)
			default:
				bufs = append(bufs, work[r.Index])
			}
		}
		require.NoError(t, kern.Check(launch.Kern), "%s\n%s", in.s.line, launch.Kern.Text())
		for i := launch.Kern.Tiles - 1; i >= 0; i-- { // in any order
			require.NoError(t, kern.Run(launch.Kern, bufs, i, i+1), "%s\n%s", in.s.line, launch.Kern.Text())
		}
	}
	return out, true
}

// A composite op means its expansion, bit for bit.
func TestExpansionsMatchReference(t *testing.T) {
	eachInstance(t, func(t *testing.T, table *ir.Table, in *instance) {
		if in.op.Def.Expand == nil {
			return
		}
		var types []ir.Type
		for _, v := range in.op.Operands {
			types = append(types, v.Type)
		}
		m, f := newFunc(types)
		copied := f.NewOp(in.op.Def, slices.Clone(f.Body.Params), nil, in.op.Attrs, nil, here())
		for _, r := range in.op.Results {
			copied.Results = append(copied.Results, r)
		}
		f.Body.Results = in.op.Def.Expand(ir.NewBuilder(table, f.Body, here()), copied)
		f.Results = in.f.Results
		require.NoError(t, ir.Verify(m), in.s.line)
		for _, wild := range []bool{false, true} {
			args := in.data(rand.New(rand.NewPCG(5, 6)), wild)
			want, err := interp.Run(in.f, args)
			require.NoError(t, err, in.s.line)
			got, err := interp.Run(f, args)
			require.NoError(t, err, in.s.line)
			for i := range want {
				assert.NoError(t, sameBits(want[i], got[i]), "%s as %v, result %d, wild %v", in.s.line, in.d, i, wild)
			}
		}
	})
}

// weighted adds to f's body the sum of its float results, each element with a weight of its own, in f64.
func weighted(b *ir.Builder, results []*ir.Value, rng *rand.Rand) *ir.Value {
	var total *ir.Value
	for _, r := range results {
		if !r.Type.DType.IsFloat() {
			continue
		}
		w := make([]float64, r.Type.Len())
		for i := range w {
			w[i] = 0.5 + rng.Float64()
		}
		c := b.Op("constant", nil, ir.A("value", tensor.Of(w, r.Type.Shape...)))
		x := r
		if x.Type.DType != dtype.F64 {
			x = b.Op("convert", []*ir.Value{x}, ir.A("to", dtype.F64))
		}
		axes := make([]int64, r.Type.Rank())
		for i := range axes {
			axes[i] = int64(i)
		}
		s := b.Op("reduce", []*ir.Value{b.Op("mul", []*ir.Value{x, c})}, ir.A("kind", "sum"), ir.A("axes", axes))
		if total == nil {
			total = s
		} else {
			total = b.Op("add", []*ir.Value{total, s})
		}
	}
	return total
}

// lossOf makes a module with the functions @f (the loss of the instance) and @g (the gradients of the float operands;
// order > 1: of a weighted sum of the gradients of the order below).
func (in *instance) lossOf(table *ir.Table, order int) (f, g *ir.Func, active []int, err error) {
	defer diag.Catch(&err)
	var types []ir.Type
	for i, v := range in.op.Operands {
		types = append(types, v.Type)
		if v.Type.DType.IsFloat() {
			active = append(active, i)
		}
	}
	build := func(grads bool) (*ir.Func, error) {
		m, fn := newFunc(types)
		b := ir.NewBuilder(table, fn.Body, here())
		op := b.Multi(in.s.op, slices.Clone(fn.Body.Params), nil, in.op.Attrs...)
		rng := rand.New(rand.NewPCG(7, 8))
		loss := weighted(b, op.Results, rng)
		gradients := func() []*ir.Value {
			xs := []*ir.Value{loss}
			for _, i := range active {
				xs = append(xs, fn.Body.Params[i])
			}
			return b.Multi("gradient", xs, nil).Results
		}
		for range order - 1 {
			loss = weighted(b, gradients(), rng)
		}
		fn.Body.Results, fn.Results = []*ir.Value{loss}, []string{"loss"}
		if grads {
			fn.Body.Results, fn.Results = gradients(), nil
			for i := range fn.Body.Results {
				fn.Results = append(fn.Results, fmt.Sprintf("g%d", i))
			}
		}
		if err := autodiff.Run(m, table); err != nil {
			return nil, err
		}
		return fn, ir.Verify(m)
	}
	if f, err = build(false); err == nil {
		g, err = build(true)
	}
	return f, g, active, err
}

// checkGradient compares gradients with central differences along random directions, operand by operand.
func checkGradient(t *testing.T, in *instance, table *ir.Table, order int) {
	f, g, active, err := in.lossOf(table, order)
	require.NoError(t, err, "%s (order %d)", in.s.line, order)
	rng := rand.New(rand.NewPCG(9, 10))
	args := in.data(rng, false)
	grads, err := interp.Run(g, args)
	require.NoError(t, err, in.s.line)
	loss := func(args []*tensor.Tensor) float64 {
		out, err := interp.Run(f, args)
		require.NoError(t, err, in.s.line)
		return out[0].Float(0)
	}
	const h = 1e-5
	for k, i := range active {
		n := args[i].Len()
		if n == 0 {
			continue
		}
		v := make([]float64, n)
		for j := range v {
			v[j] = rng.Float64()*2 - 1
		}
		at := func(s float64) float64 {
			moved := slices.Clone(args)
			moved[i] = args[i].Clone()
			for j := range v {
				moved[i].F64()[j] += s * v[j]
			}
			return loss(moved)
		}
		// Five points: the error is of order h⁴.
		want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		got := 0.0
		for j := range v {
			got += grads[k].F64()[j] * v[j]
		}
		assert.InDelta(t, want, got, 2e-5*(1+math.Abs(want)), "%s: operand %d, order %d", in.s.line, i, order)
	}
}

// Derivatives are those of finite differences in f64, first and second.
func TestDerivativesMatchDifferences(t *testing.T) {
	eachInstance(t, func(t *testing.T, table *ir.Table, in *instance) {
		def := in.op.Def
		differentiable := def.VJP != nil || def.NoGradZero
		floats := false
		for _, v := range in.op.Operands {
			floats = floats || v.Type.DType.IsFloat()
		}
		result := false
		for _, v := range in.op.Results {
			result = result || v.Type.DType.IsFloat()
		}
		if !differentiable || !floats || !result || in.d != dtype.F64 || in.s.has("nograd") {
			return
		}
		for _, v := range in.op.Operands {
			if v.Type.DType.IsFloat() && v.Type.DType != dtype.F64 {
				return
			}
		}
		checkGradient(t, in, table, 1)
		if def.VJP != nil && !in.s.has("once") {
			checkGradient(t, in, table, 2)
		}
	})
}

// A row refuses what its constraints name, with their label, and never panics on what does not
// fit: every sample is changed in all sorts of ways. Conditions that no change meets have lines
// of their own in refusals().
func TestConstraintsRefuse(t *testing.T) {
	table := ops.Table()
	refused := map[string]string{}
	label := regexp.MustCompile(`constraint (\w+/C\d+)`)
	try := func(def *ir.OpDef, types []ir.Type, attrs ir.Attrs, what string) {
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("%s %v %v (%s): %v", def.Name, types, attrs, what, r)
			}
		}()
		_, f := newFunc(types)
		_, err := f.MakeOp(def, f.Body.Params, attrs, nil, here())
		if err == nil {
			return
		}
		if m := label.FindStringSubmatch(err.Error()); m != nil && refused[m[1]] == "" {
			refused[m[1]] = what + ": " + err.Error()
		}
		// Inference may have said it first, in its own words.
		probe := &ir.Op{Def: def, Operands: f.Body.Params, Attrs: attrs, Block: f.Body, Loc: here()}
		for _, c := range def.Constraints {
			if label := def.Name + "/" + c.Label; refused[label] == "" && refuses(c, probe) {
				refused[label] = what + ": " + err.Error()
			}
		}
		e := diag.As(err)
		assert.NotEqual(t, "error", e.Code, "%v", err)
		assert.Equal(t, "law", e.Layer)
		assert.Equal(t, def.Name, e.Op)
	}
	for _, s := range append(samples(), refusals()...) {
		def := table.Lookup(s.op)
		if len(def.Regions) > 0 {
			continue
		}
		for _, d := range s.dtypes() {
			var types []ir.Type
			for _, o := range s.operands {
				typ := o.typ
				if o.open {
					typ.DType = d
				}
				types = append(types, typ)
			}
			attrs := ir.MakeAttrs(s.attrList(t, def, d)...)
			try(def, types, attrs, "as it is")
			if d != s.dtypes()[0] {
				continue
			}
			for i := range types {
				changed := func(u ir.Type) []ir.Type {
					c := slices.Clone(types)
					c[i] = u
					return c
				}
				for _, other := range dtype.All() {
					try(def, changed(types[i].With(other)), attrs, "dtype")
				}
				shape := types[i].Shape
				for k := range shape {
					for _, n := range []int64{0, 1, shape[k] + 1, shape[k] * 2} {
						c := slices.Clone(shape)
						c[k] = n
						try(def, changed(ir.T(types[i].DType, c...)), attrs, "size")
					}
					try(def, changed(ir.T(types[i].DType, slices.Delete(slices.Clone(shape), k, k+1)...)), attrs, "rank")
				}
				try(def, changed(ir.T(types[i].DType, append(slices.Clone(shape), 2)...)), attrs, "rank")
				try(def, changed(ir.T(types[i].DType, 1<<31)), attrs, "huge")
			}
			for n := range len(types) + 1 {
				try(def, types[:n], attrs, "operands left out")
			}
			try(def, append(slices.Clone(types), ir.T(d, 3)), attrs, "one operand more")
			for _, ad := range def.Attrs {
				try(def, types, attrs.Without(ad.Name), "attribute left out")
				for _, v := range otherValues(ad.Kind, attrs.Get(ad.Name)) {
					try(def, types, attrs.Set(ad.Name, v), "attribute "+ad.Name)
				}
			}
		}
	}
	for _, def := range table.All() {
		if len(def.Regions) > 0 || def.Name == "call" {
			continue // TestRegionsRefuse
		}
		for _, c := range def.Constraints {
			label := def.Name + "/" + c.Label
			t.Run(label, func(t *testing.T) {
				if why := unbreakable()[label]; why != "" {
					t.Skip(why)
				}
				if refused[label] == "" {
					t.Errorf("nothing tried breaks %s (%s)", label, c.Text)
				}
			})
		}
	}
}

// unbreakable are conditions that a row has in common with others and that always hold for it.
func unbreakable() map[string]string {
	return map[string]string{
		"rng_bits/C3":  "the element type is not an attribute",
		"bernoulli/C3": "the element type is not an attribute",
		"sgd/C2":       "plain sgd has no state",
	}
}

// refuses reports that a constraint fails on an op; one that can't even be asked does not.
func refuses(c ir.Constraint, op *ir.Op) (refuses bool) {
	defer func() {
		if recover() != nil {
			refuses = false
		}
	}()
	return c.Check(op) != nil
}

// otherValues are values of a kind, most of them wrong.
func otherValues(kind string, now any) []any {
	switch kind {
	case "int":
		return []any{-2, -1, 0, 1, 2, 3, 99, int64(math.MaxInt64), int64(math.MinInt64), 1.5, "x"}
	case "float":
		return []any{-1.0, 0.0, 1.0, 2.0, math.NaN(), math.Inf(1), "x"}
	case "bool":
		return []any{true, false, 1}
	case "string":
		return []any{"", "bogus", "sum", "max", "and", 1}
	case "strings":
		return []any{[]string{"f32[2]", "bogus"}, []string{"f32[-1]"}, []string{"f32[2"}}
	case "dtype":
		vs := []any{"x", dtype.Invalid}
		for _, d := range dtype.All() {
			vs = append(vs, d)
		}
		return vs
	case "ints":
		vs := []any{[]int64{}, []int64{0}, []int64{0, 0}, []int64{1, 0}, []int64{-1}, []int64{7}, []int64{1, 1, 1}, 3}
		if l, ok := now.([]int64); ok {
			for i := range l {
				for _, v := range []int64{-1, 0, 1, l[i] + 1, 99, l[0]} {
					c := slices.Clone(l)
					c[i] = v
					vs = append(vs, c)
				}
			}
			vs = append(vs, append(slices.Clone(l), 1), append(slices.Clone(l), 0))
		}
		return vs
	}
	return nil
}

// Control flow and what else has regions: the program parses, prints back the same, runs, and has the derivative that
// differences give.
func TestPrograms(t *testing.T) {
	table := ops.Table()
	for name, src := range programs() {
		t.Run(name, func(t *testing.T) {
			m, err := ir.Parse(table, name+".ir", src)
			require.NoError(t, err)
			require.NoError(t, ir.Verify(m))
			back, err := ir.Parse(table, name+".ir", m.String())
			require.NoError(t, err)
			assert.Equal(t, m.String(), back.String())
			f := m.Func("f")
			rng := rand.New(rand.NewPCG(1, 2))
			var args []*tensor.Tensor
			for _, p := range f.Body.Params {
				args = append(args, fill(rng, operand{lo: 0.5, hi: 1.5, ranged: true}, p.Type, false))
			}
			if def := table.Lookup(name); def != nil && def.Elem != nil {
				out, err := interp.Run(f, args)
				require.NoError(t, err)
				for _, op := range f.Body.Ops {
					if op.Name() != name {
						continue
					}
					l, err := lower.Op(op)
					require.NoError(t, err)
					in := &instance{s: sample{line: name}, op: op}
					got, ok := runLaunches(t, in, l, args)
					require.True(t, ok)
					for i := range out {
						assert.NoError(t, sameBits(out[i], got[i]))
					}
				}
				return
			}
			out, err := interp.Run(f, args)
			require.NoError(t, err)
			for i, r := range f.Body.Results {
				assert.Equal(t, r.Type.Shape, out[i].Shape)
			}
		})
	}
}

// Regions that do not fit are refused by label.
func TestRegionsRefuse(t *testing.T) {
	table := ops.Table()
	tried := map[string]bool{}
	for label, src := range badPrograms() {
		t.Run(label, func(t *testing.T) {
			m, err := ir.Parse(table, "bad.ir", src)
			if err == nil {
				err = ir.Verify(m)
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), "constraint "+label+":")
		})
		tried[label] = true
	}
	for _, def := range table.All() {
		if len(def.Regions) == 0 && def.Name != "call" {
			continue
		}
		for _, c := range def.Constraints {
			assert.True(t, tried[def.Name+"/"+c.Label], "nothing tried breaks %s/%s (%s)", def.Name, c.Label, c.Text)
		}
	}
}

// A convolution as a kernel of its family has the op's bits.
func TestConvKernelMatchesReference(t *testing.T) {
	table := ops.Table()
	for _, s := range samples() {
		if s.op != "conv" {
			continue
		}
		in, err := s.build(t, table, dtype.F32)
		require.NoError(t, err)
		args := in.data(rand.New(rand.NewPCG(1, 2)), false)
		want, err := interp.Run(in.f, args)
		require.NoError(t, err)
		k := ops.ConvKernel(in.op)
		require.NoError(t, k.Check(), s.line)
		got := tensor.Of(convref.Conv32(k, args[0].F32(), args[1].F32()), in.op.Out(0).Shape...)
		assert.NoError(t, sameBits(want[0], got), s.line)
	}
}
