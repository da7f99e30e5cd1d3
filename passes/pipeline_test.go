package passes_test

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes"
	"reprise/passes/canon"
	"reprise/passes/cse"
	"reprise/passes/dce"
	"reprise/passes/expand"
	"reprise/passes/fuse"
	"reprise/passes/group"
	"reprise/passes/raise"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The table keeps every edge, and every edge names passes that exist and gives a reason.
func TestTableHonoursEdges(t *testing.T) {
	at := map[string]int{}
	for i, p := range passes.Table() {
		require.NotContains(t, at, p.Name, "names are unique")
		require.NotEmpty(t, p.Doc, p.Name)
		at[p.Name] = i
	}
	seen := map[[2]string]bool{}
	for _, e := range passes.Edges() {
		require.Contains(t, at, e.Before)
		require.Contains(t, at, e.After)
		require.NotEmpty(t, e.Why)
		require.Less(t, at[e.Before], at[e.After], "%s must come before %s: %s", e.Before, e.After, e.Why)
		require.False(t, seen[[2]string{e.Before, e.After}], "two reasons for one edge: %s before %s", e.Before, e.After)
		seen[[2]string{e.Before, e.After}] = true
	}
}

// small is each builtin model at a shape that compiles in no time.
func small() []string {
	return []string{
		"mlp,layers=1,in=8,hidden=16,classes=4,batch=4,dropout=0.1",
		"gpt,layers=2,d=16,heads=2,seq=8,batch=2,vocab=16",
		"gpt2-124m,layers=1,d=16,heads=2,seq=8,batch=2,vocab=16",
		"llama,layers=1,d=16,heads=4,kv_heads=2,hidden=24,seq=8,batch=2,vocab=16",
		"moe,layers=1,d=16,heads=2,experts=4,hidden=16,seq=8,batch=2,vocab=16",
		"cnn,size=8,width=4,classes=4,batch=4",
		"resnet,size=8,width=4,blocks=1,classes=4,batch=4",
		"lstm,d=8,hidden=8,seq=4,batch=2,vocab=16",
	}
}

func modules(t *testing.T) map[string]*ir.Module {
	t.Helper()
	out := map[string]*ir.Module{}
	for _, spec := range small() {
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

func hash(m *ir.Module) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(m.String()))) }

// Every pass leaves every builtin model verified, its text reads back, the module that was cloned is as it
// was, and running again gives the same.
func TestPassesOnBuiltins(t *testing.T) {
	table := ops.Table()
	for name, m := range modules(t) {
		t.Run(name, func(t *testing.T) {
			before := hash(m)
			work := m.Clone()
			var seen []string
			var stages []string
			require.NoError(t, passes.Run(work, table, passes.Options{After: func(pass string, m *ir.Module) {
				seen = append(seen, pass)
				stages = append(stages, hash(m))
				require.NoError(t, ir.Verify(m))
				back, err := ir.Parse(table, pass, m.String())
				require.NoError(t, err, pass)
				require.Equal(t, m.String(), back.String(), pass)
			}}))
			var want []string
			for _, p := range passes.Table() {
				want = append(want, p.Name)
			}
			require.Equal(t, want, seen)
			require.Equal(t, before, hash(m), "the input was changed")

			again := m.Clone()
			var second []string
			require.NoError(t, passes.Run(again, table, passes.Options{After: func(_ string, m *ir.Module) { second = append(second, hash(m)) }}))
			require.Equal(t, stages, second, "compilation is a function")
		})
	}
}

// Passes that rewrite reach a fixed point: a second run right after finds nothing. (Not group: a larger unit
// may join what two smaller ones could not.)
func TestPassesAreIdempotent(t *testing.T) {
	again := map[string]bool{"canon": true, "dce": true, "raise": true, "cse": true, "autodiff": true, "expand": true}
	for name, m := range modules(t) {
		t.Run(name, func(t *testing.T) {
			for _, p := range passes.Table() {
				require.NoError(t, p.Run(m, ops.Table()))
				if kind, _, _ := strings.Cut(p.Name, "#"); again[kind] {
					once := m.String()
					require.NoError(t, p.Run(m, ops.Table()))
					require.Equal(t, once, m.String(), p.Name)
				}
			}
		})
	}
}

// The builtin models are written with composite ops: there is nothing to raise in them.
func TestBuiltinsHaveNothingToRaise(t *testing.T) {
	for name, m := range modules(t) {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, passes.Run(m, ops.Table(), passes.Options{Only: []string{"canon", "dce"}}))
			before := m.String()
			require.NoError(t, passes.Run(m, ops.Table(), passes.Options{Only: []string{"raise"}}))
			require.Equal(t, before, m.String())
		})
	}
}

// A pass whose module does not verify is a failure that carries what the pass was given; a planned module
// is refused.
func TestRunRefuses(t *testing.T) {
	m := modules(t)["mlp/infer"]
	m.Attrs = m.Attrs.Set("stage", "planned")
	err := passes.Run(m, ops.Table(), passes.Options{})
	require.EqualError(t, err, `module "mlp" was planned already: nothing may change it any more
  hint: start from the model, or from the text of a pass before planning`)

	f := &passes.Failure{Pass: "cse", Before: "module", Err: errors.New("no such thing")}
	require.EqualError(t, f, "pass cse: no such thing")
	require.EqualError(t, errors.Unwrap(f), "no such thing")

	broken := modules(t)["mlp/infer"]
	broken.Func("step").Body.Ops[0].Loc.Layer = ""
	err = passes.Run(broken, ops.Table(), passes.Options{})
	require.ErrorContains(t, err, "(V3)")
	require.Equal(t, "verify", diag.As(err).Code)
}

// Golden files: testdata/<name>.ir has a module, and after a line "// after: pass, …" what those passes make
// of it. Run with -update and read the diff.
func TestGolden(t *testing.T) {
	table := ops.Table()
	plain := func(f func(*ir.Module)) func(*ir.Module, *ir.Table) error {
		return func(m *ir.Module, _ *ir.Table) error { f(m); return nil }
	}
	run := map[string]func(*ir.Module, *ir.Table) error{
		"canon": canon.Run, "cse": plain(cse.Run), "dce": plain(dce.Run), "raise": raise.Run, "expand": expand.Run, "group": group.Run,
		"fuse": func(m *ir.Module, t *ir.Table) error {
			for _, f := range m.Funcs {
				f.Renumber()
				fuse.Fold(f, t, fuse.Sites(f))
				f.Renumber()
			}
			return nil
		},
	}
	after := regexp.MustCompile(`(?m)^// after: (.*)$`)
	files, err := filepath.Glob(filepath.Join("testdata", "*.ir"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".ir"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			loc := after.FindSubmatchIndex(text)
			require.NotNil(t, loc, "no line // after: …")
			m, err := ir.Parse(table, file, string(text[:loc[0]]))
			require.NoError(t, err)
			for _, name := range strings.Split(string(text[loc[2]:loc[3]]), ", ") {
				require.Contains(t, run, name)
				require.NoError(t, run[name](m, table))
				require.NoError(t, ir.Verify(m))
			}
			got := string(text[:loc[1]]) + "\n\n" + m.String()
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, got, string(text), "run with -update and read the diff")
		})
	}
}

// lm is a small language model in the manner of GPT (learned positions, LayerNorm, GELU) or of Llama
// (rotary, grouped queries, RMSNorm, SwiGLU), written with composite ops or in parts.
type lm struct {
	llama, parts bool
	drop         float64
}

func (c lm) mean(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	n := x.Type.Shape[x.Type.Rank()-1]
	return s.Reshape(s.Scale(s.Sum(x, -1), 1/float64(n)), append(slices.Clone(x.Type.Shape[:x.Type.Rank()-1]), 1)...)
}

func (c lm) norm(s *nn.Scope, name string, x *nn.Tensor) *nn.Tensor {
	switch {
	case !c.parts && c.llama:
		return s.RMSNorm(name, x)
	case !c.parts:
		return s.LayerNorm(name, x)
	}
	s = s.In(name)
	n := x.Type.Shape[x.Type.Rank()-1]
	g := s.Param("g", []int64{n}, nn.Ones)
	if c.llama {
		v := s.AddScalar(c.mean(s, s.Mul(x, x)), 1e-5)
		return s.Mul(g, s.Div(x, s.Sqrt(v)))
	}
	b := s.Param("b", []int64{n}, nn.Zeros)
	d := s.Sub(x, c.mean(s, x))
	return s.Add(s.Mul(s.Div(d, s.Sqrt(s.AddScalar(c.mean(s, s.Square(d)), 1e-5))), g), b)
}

func (c lm) gelu(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	if !c.parts {
		return s.Gelu(x)
	}
	u := s.Scale(s.Add(x, s.Scale(s.Mul(s.Mul(x, x), x), 0.044715)), 0.7978845608)
	return s.Scale(s.Mul(x, s.AddScalar(s.Tanh(u), 1)), 0.5)
}

func (c lm) silu(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	if !c.parts {
		return s.Silu(x)
	}
	return s.Div(x, s.AddScalar(s.Exp(s.Neg(x)), 1))
}

func (c lm) softmax(s *nn.Scope, x *nn.Tensor) *nn.Tensor {
	kept := append(slices.Clone(x.Type.Shape[:x.Type.Rank()-1]), 1)
	last := ir.A("axes", []int64{int64(x.Type.Rank() - 1)})
	e := s.Exp(s.Sub(x, s.Reshape(s.Op("reduce", []*nn.Tensor{x}, ir.A("kind", "max"), last), kept...)))
	return s.Div(e, s.Reshape(s.Sum(e, -1), kept...))
}

func (c lm) rope(s *nn.Scope, x, cos, sin *nn.Tensor) *nn.Tensor {
	if !c.parts {
		return s.Rope(x, cos, sin)
	}
	T, D := x.Type.Shape[1], x.Type.Shape[3]
	cos, sin = s.Reshape(s.Concat(1, cos, cos), T, 1, D), s.Reshape(s.Concat(1, sin, sin), T, 1, D)
	rot := s.Concat(3, s.Neg(s.Slice(x, 3, D/2, D)), s.Slice(x, 3, 0, D/2))
	return s.Add(s.Mul(x, cos), s.Mul(rot, sin))
}

func (c lm) attention(s *nn.Scope, q, k, v *nn.Tensor) *nn.Tensor {
	if !c.parts {
		return s.Attention(q, k, v, nn.Causal(), nn.DropProbs(c.drop))
	}
	B, T, H, D := q.Type.Shape[0], q.Type.Shape[1], q.Type.Shape[2], q.Type.Shape[3]
	repeat := func(x *nn.Tensor) *nn.Tensor {
		kv := x.Type.Shape[2]
		return s.Reshape(s.BroadcastTo(s.Reshape(x, B, T, kv, 1, D), B, T, kv, H/kv, D), B, T, H, D)
	}
	front := func(x *nn.Tensor) *nn.Tensor { return s.Transpose(x, 0, 2, 1, 3) }
	if c.llama {
		k, v = repeat(k), repeat(v)
	}
	a := s.Scale(s.Contract(front(q), front(k), []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{3}), 1/math.Sqrt(float64(D)))
	tril := tensor.New(dtype.Bool, T, T)
	for i := range T * T {
		if i%T <= i/T {
			tril.SetBits(i, 1)
		}
	}
	p := c.softmax(s, s.Select(s.Array(tril), a, s.Const(dtype.F32, math.Inf(-1))))
	p = s.Dropout(p, c.drop)
	return front(s.Contract(p, front(v), []int64{0, 1}, []int64{0, 1}, []int64{3}, []int64{2}))
}

func (c lm) loss(s *nn.Scope, logits, targets *nn.Tensor) *nn.Tensor {
	if !c.parts {
		return s.CrossEntropy(logits, targets)
	}
	hot := s.Op("one_hot", []*nn.Tensor{targets}, ir.A("depth", logits.Type.Shape[2]))
	logp := s.Log(c.softmax(s, logits))
	return s.MeanAll(s.Neg(s.Sum(s.Mul(logp, hot), -1)))
}

func (c lm) model() nn.Model {
	const B, T, d, H, V = 2, 8, 16, 4, 16
	kv := int64(H)
	if c.llama {
		kv = 2
	}
	return nn.Model{Name: "lm", Loss: func(s *nn.Scope) *nn.Tensor {
		tokens, targets := s.Input("tokens", dtype.I32, []int64{B, T}), s.Input("targets", dtype.I32, []int64{B, T}, nn.Targets(V))
		wte := s.Embedding("wte", V, d)
		x := s.Take(wte, tokens)
		cos, sin := s.RopeTables(T, d/H, 100)
		for i := range 2 {
			b := s.Inf("layers.%d", i)
			h := c.norm(b, "ln1", x)
			q, k, v := b.Project("q", h, H, d/H, nn.NoBias()), b.Project("k", h, kv, d/H, nn.NoBias()), b.Project("v", h, kv, d/H, nn.NoBias())
			if c.llama {
				q, k = c.rope(b, q, cos, sin), c.rope(b, k, cos, sin)
			}
			x = b.Add(x, b.Dropout(b.Join("proj", c.attention(b, q, k, v), d), c.drop))
			h = c.norm(b, "ln2", x)
			if c.llama {
				h = b.Mul(c.silu(b, b.Linear("gate", h, 2*d)), b.Linear("up", h, 2*d))
			} else {
				h = c.gelu(b, b.Linear("fc", h, 4*d))
			}
			x = b.Add(x, b.Linear("down", h, d))
		}
		return c.loss(s, s.MatMulT(c.norm(s, "ln", x), wte), targets)
	}}
}

// nameless is a module's text without names of values and places: what is computed.
func nameless(m *ir.Module) string {
	for _, f := range m.Funcs {
		n := 0
		var block func(b *ir.Block)
		name := func(vs []*ir.Value) {
			for _, v := range vs {
				v.Name = fmt.Sprintf("v%d", n)
				n++
			}
		}
		block = func(b *ir.Block) {
			name(b.Params)
			for _, op := range b.Ops {
				op.Loc = ir.Loc{Layer: "x"}
				name(op.Results)
				for _, r := range op.Regions {
					block(r)
				}
			}
		}
		block(f.Body)
	}
	return m.String()
}

// A model written from primitives becomes the program that the composite ops make: the same units in the same
// order, forward, backward and optimizer.
func TestPartsBecomeTheSameProgram(t *testing.T) {
	for _, c := range []lm{{}, {drop: 0.2}, {llama: true}, {llama: true, drop: 0.1}} {
		t.Run(fmt.Sprintf("llama=%v,dropout=%v", c.llama, c.drop), func(t *testing.T) {
			prepare := func(parts bool) *ir.Module {
				c.parts = parts
				m, err := nn.Train(c.model(), nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 0.1}})
				require.NoError(t, err)
				require.NoError(t, passes.Run(m, ops.Table(), passes.Options{}))
				return m
			}
			whole, parts := nameless(prepare(false)), nameless(prepare(true))
			require.Contains(t, whole, "attention_grad")
			require.Equal(t, whole, parts)
		})
	}
}

// What is raised means what the parts mean, gradients included: the step of a model in parts gives the same loss
// and the same new state, but for rounding, as the step that raises nothing.
func TestRaisedGradients(t *testing.T) {
	for _, c := range []lm{{parts: true}, {parts: true, llama: true}} {
		t.Run(fmt.Sprintf("llama=%v", c.llama), func(t *testing.T) {
			m, err := nn.Train(c.model(), nn.Recipe{Optimizer: nn.SGD{}, Schedule: nn.Constant{LR: 1}})
			require.NoError(t, err)
			run := func(names ...string) []*tensor.Tensor {
				work := m.Clone()
				require.NoError(t, passes.Run(work, ops.Table(), passes.Options{Only: names}))
				f := work.Func("step")
				r := rand.New(rand.NewPCG(1, 2))
				var args []*tensor.Tensor
				for _, p := range f.Body.Params {
					a := tensor.New(p.Type.DType, p.Type.Shape...)
					for i := range a.Len() {
						switch {
						case p.Type.DType == dtype.F32:
							a.F32()[i] = float32(r.NormFloat64())
						case p.Role() == ir.RoleInput:
							a.SetBits(i, r.Uint64N(16))
						}
					}
					args = append(args, a)
				}
				out, err := interp.Run(f, args)
				require.NoError(t, err)
				return out
			}
			parts := run("canon", "dce", "cse", "autodiff")
			raised := run("canon", "dce", "raise", "cse", "autodiff")
			for i, want := range parts {
				for k, x := range want.F32() {
					require.InDelta(t, x, raised[i].F32()[k], 1e-3*(1+math.Abs(float64(x))), "%s[%d]", m.Func("step").Results[i], k)
				}
			}
		})
	}
}
