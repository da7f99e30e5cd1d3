package frontend_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/diag"
	"reprise/ir"
)

func file(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	return p
}

func TestBuiltin(t *testing.T) {
	a, err := frontend.Load("builtin:mlp,hidden=8,lr=0.1", frontend.Options{Train: true, Settings: []string{"lr=0.01", "optimizer=lion"}})
	require.NoError(t, err)
	require.Equal(t, "builtin:mlp,hidden=8,optimizer=lion,lr=0.01,min_lr=0.001", a.Spec)
	require.True(t, a.Train)
	b, err := frontend.Load("builtin:mlp,hidden=8,optimizer=lion,lr=0.01", frontend.Options{Train: true})
	require.NoError(t, err)
	require.Equal(t, a.SHA256, b.SHA256)
	c, err := frontend.Load("builtin:mlp,hidden=8", frontend.Options{})
	require.NoError(t, err)
	require.False(t, c.Train)
	require.NotNil(t, c.Module.Func("step").Result("logits"))
}

// A module in text form is what its own text says, under any name.
func TestTextForm(t *testing.T) {
	m, err := frontend.Load("builtin:mlp,hidden=8", frontend.Options{Train: true})
	require.NoError(t, err)
	for _, name := range []string{"model.ir", "model.txt"} {
		p := file(t, name, "// a comment\n"+m.Module.String())
		back, err := frontend.Load(p, frontend.Options{})
		require.NoError(t, err)
		require.Equal(t, m.SHA256, back.SHA256)
		require.True(t, back.Train)
		require.Equal(t, "model", back.Name)
		_, err = frontend.Load(p, frontend.Options{Settings: []string{"lr=1"}})
		require.ErrorContains(t, err, "training options (lr=1) have nowhere to go")
	}
}

const forward = `module "line"

func @step(%w: f32[2] {role="param"}, %x: f32[2] {feed="normal", role="input"}) -> (loss) {
  %a = mul %w, %x : f32[2] loc(line)
  %b = reduce %a {axes=[0], kind="sum"} : f32[] loc(line)
  return %b
}
`

// A step that computes a loss is made into one that trains.
func TestTrainTextForm(t *testing.T) {
	p := file(t, "line.ir", forward)
	m, err := frontend.Load(p, frontend.Options{})
	require.NoError(t, err)
	require.False(t, m.Train)
	m, err = frontend.Load(p, frontend.Options{Train: true, Settings: []string{"optimizer=sgd", "lr=0.5"}})
	require.NoError(t, err)
	require.True(t, m.Train)
	step := m.Module.Func("step")
	require.Equal(t, []string{"loss", "w", "w/m"}, step.Results)
	_, err = frontend.Load(p, frontend.Options{Train: true, Settings: []string{"rate=0.5"}})
	require.ErrorContains(t, err, `training: no option "rate"`)
}

// An inference step becomes a training step by a loss.
func TestLossOfTextForm(t *testing.T) {
	m, err := frontend.Load("builtin:mlp,hidden=8,batch=4,classes=3", frontend.Options{})
	require.NoError(t, err)
	p := file(t, "mlp.ir", m.Module.String())
	_, err = frontend.Load(p, frontend.Options{Train: true})
	require.ErrorContains(t, err, "has no @step with a result %loss")
	for _, loss := range []string{"cross_entropy", "mse", "l1", "bce", "mse:logits"} {
		m, err = frontend.Load(p, frontend.Options{Train: true, Loss: loss})
		require.NoError(t, err)
		require.True(t, m.Train)
		require.NoError(t, ir.Verify(m.Module))
	}
	require.Equal(t, "f32[4,3]", m.Module.Func("step").Param("targets").Type.String())
	for loss, want := range map[string]string{
		"mes":       "no loss \"mes\"\n  hint: did you mean \"mse\"? losses: cross_entropy, mse, l1, bce",
		"mse:logit": "loss \"mse:logit\": say of which result, as mse:RESULT\n  hint: results of @step: logits",
	} {
		_, err = frontend.Load(p, frontend.Options{Train: true, Loss: loss})
		require.EqualError(t, err, want)
	}
	_, err = frontend.Load("builtin:mlp", frontend.Options{Train: true, Loss: "mse"})
	require.ErrorContains(t, err, "builtin:mlp is trained by cross_entropy")
}

// What can't be compiled is told by its content, and the way out is named.
func TestRefusals(t *testing.T) {
	hf := filepath.Join(t.TempDir(), "llama")
	require.NoError(t, os.Mkdir(hf, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(hf, "config.json"), []byte(`{"model_type":"llama"}`), 0o644))
	const supported = "supported so far: .ir files (docs/ir.md) and builtin:NAME[,key=value…]"
	for _, c := range []struct{ path, code, message, hint string }{
		{file(t, "a.txt", "module @jit_f attributes {} {\n  func.func public @main()"), "unsupported", "is an MLIR module (StableHLO), which can't be compiled", supported},
		{file(t, "b.mlir", ""), "unsupported", "is an MLIR module (StableHLO), which can't be compiled", supported},
		{file(t, "c", "\x08\x07\x12\x07pytorch\x00"), "unsupported", "is an ONNX model, which can't be compiled", supported},
		{file(t, "d.json", `{"architectures":["GPT2LMHeadModel"],"model_type":"gpt2"}`), "unsupported", "is a Hugging Face configuration, which can't be compiled", supported},
		{hf, "unsupported", "is a Hugging Face model directory, which can't be compiled", supported},
		{file(t, "e", "\x7fELF\x02"), "unsupported", "is a compiled program, which can't be compiled", "run it directly, or with: reprise run "},
		{file(t, "f.json", `{"format":"reprise.graph/1"}`), "unsupported", "is a graph for the planner, which can't be compiled", "plan it with: reprise plan "},
		{file(t, "g", "\x10\x00\x00\x00\x00\x00\x00\x00{\"a\":{}}"), "unsupported", "is a safetensors file: weights without a model, which can't be compiled", supported},
		{file(t, "h", "hello"), "unsupported", "is of no form that is known here, which can't be compiled", supported},
		{filepath.Join(t.TempDir(), "nowhere.ir"), "model", "no file ", supported},
		{"gpt,layers=2", "model", "no file of this name", "did you mean builtin:gpt,layers=2?"},
		{t.TempDir(), "model", "it is a directory without config.json", supported},
	} {
		_, err := frontend.Load(c.path, frontend.Options{})
		require.Error(t, err)
		e := diag.As(err)
		require.Equal(t, c.code, e.Code)
		require.Contains(t, e.Message, c.message)
		require.Contains(t, e.Hint, c.hint)
	}
}

// A mistake in the text has its line and column.
func TestMalformedText(t *testing.T) {
	p := file(t, "bad.ir", "module \"m\"\n\nfunc @step(%x: f32[2]) -> (y) {\n  %a = frob %x : f32[2] loc(l)\n  return %a\n}\n")
	_, err := frontend.Load(p, frontend.Options{})
	require.Error(t, err)
	e := diag.As(err)
	require.Equal(t, p, e.File)
	require.Equal(t, 4, e.Line)
	require.Positive(t, e.Col)
	require.Contains(t, e.Message, "frob")
}

func TestBindWithoutOpenSizes(t *testing.T) {
	_, err := frontend.Load("builtin:mlp", frontend.Options{Bind: map[string][]int64{"x": {4, 8}}})
	require.EqualError(t, err, "builtin:mlp has no open sizes to bind: its shapes are fixed\n  hint: leave --bind out; sizes of a builtin are its options, as in builtin:mlp,batch=4")
}
