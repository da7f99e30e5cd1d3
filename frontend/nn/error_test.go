package nn_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir/dtype"
)

func recipe() nn.Recipe {
	return nn.Recipe{Optimizer: nn.DefaultAdamW(), Schedule: nn.Constant{LR: 1e-3}}
}

// Every mistake in a model names its layer and the shapes.
func TestModelErrors(t *testing.T) {
	x := func(s *nn.Scope) *nn.Tensor { return s.Input("x", dtype.F32, []int64{4, 8}) }
	for name, c := range map[string]struct {
		loss func(s *nn.Scope) *nn.Tensor
		code string
		want string
	}{
		"add": {func(s *nn.Scope) *nn.Tensor {
			return s.In("block").In("res").Add(x(s), s.Linear("fc", x(s), 7))
		}, "shape", "layer block.res: add of f32[4,8] and f32[4,7]: the shapes don't fit (sizes 8 and 7)"},
		"matmul": {func(s *nn.Scope) *nn.Tensor {
			w := s.In("fc").Param("w", []int64{9, 2}, nn.Zeros)
			return s.In("fc").MatMul(x(s), w)
		}, "shape", "layer fc: matmul of f32[4,8] by f32[9,2]: the last size of the first must be the first of the second"},
		"loss": {func(s *nn.Scope) *nn.Tensor { return s.Linear("fc", x(s), 2) },
			"shape", "layer m: the loss must be f32[], got f32[4,2]"},
		"twice": {func(s *nn.Scope) *nn.Tensor {
			s.Linear("fc", x(s), 2)
			return s.SumAll(s.Linear("fc", x(s), 2))
		}, "name", `layer fc: "fc.w" is declared twice (keep the first tensor to share a weight)`},
		"labels": {func(s *nn.Scope) *nn.Tensor {
			return s.In("loss").CrossEntropy(x(s), s.Input("y", dtype.I32, []int64{5}))
		}, "shape", "layer loss: cross-entropy of logits f32[4,8] with labels i32[5]: want labels of shape [4]"},
		"reshape": {func(s *nn.Scope) *nn.Tensor { return s.Reshape(x(s), 3, -1) },
			"shape", "layer m: f32[4,8] can't be reshaped to [3 -1]"},
		"dropout": {func(s *nn.Scope) *nn.Tensor { return s.In("d").Dropout(x(s), 1) },
			"option", "layer d: dropout probability 1: want 0 ≤ p < 1"},
		"no parameter": {func(s *nn.Scope) *nn.Tensor { return s.SumAll(x(s)) },
			"model", "layer m: there is nothing to train: no parameter was declared"},
		"buffer": {func(s *nn.Scope) *nn.Tensor {
			s.In("a").Buffer("n", dtype.I32, nil, nn.Zeros)
			s.In("a").Update("n", s.Const(dtype.F32, 1))
			return nil
		}, "shape", `layer a: buffer "a.n" of i32[] is updated with f32[]`},
		"row": {func(s *nn.Scope) *nn.Tensor {
			return s.In("odd").Op("contract", []*nn.Tensor{x(s), x(s)})
		}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nn.Train(nn.Model{Name: "m", Loss: c.loss}, recipe())
			require.Error(t, err)
			e := diag.As(err)
			require.NotEmpty(t, e.Layer)
			require.Equal(t, "error_test.go", e.File, "the person's own source")
			require.Positive(t, e.Line)
			if c.want != "" {
				require.Equal(t, c.code, e.Code)
				e := *e
				e.File = ""
				require.Equal(t, c.want, e.Error())
			}
		})
	}
}

func TestMicroBatchesMustDivide(t *testing.T) {
	r := recipe()
	r.Micro = 3
	_, err := nn.Train(nn.Model{Name: "m", Loss: func(s *nn.Scope) *nn.Tensor {
		return s.MeanAll(s.Linear("fc", s.Input("x", dtype.F32, []int64{4, 8}), 2))
	}}, r)
	require.ErrorContains(t, err, `input "x": f32[4,8] can't be cut into 3 micro-batches along its first axis`)
}

// Unknown names list what exists, with the nearest first.
func TestBuiltinErrors(t *testing.T) {
	for spec, want := range map[string]string{
		"gtp":  "no builtin model \"gtp\"\n  hint: did you mean \"gpt\"? models: mlp, gpt, gpt2-124m, llama, moe, qwen, llama4, mixtral, cnn, resnet, lstm",
		"bert": "no builtin model \"bert\"\n  hint: models: mlp, gpt, gpt2-124m, llama, moe, qwen, llama4, mixtral, cnn, resnet, lstm",
		"gpt,layer=3": "builtin:gpt: no option \"layer\"\n  hint: did you mean \"layers\"? options: layers, d, heads, seq, batch, vocab, dropout, dtype, predict, " +
			"optimizer, lr, min_lr, schedule, warmup, steps, decay, clip, micro, beta1, beta2, eps, momentum, ema, loss_scale",
		"gpt,layers=x":       "builtin:gpt: layers=x: want an integer\n  hint: layers: blocks (default 6)",
		"gpt,layers=0":       "builtin:gpt: layers=0: want at least 1\n  hint: layers: blocks (default 6)",
		"gpt,dropout=1":      "builtin:gpt: dropout=1: want less than 1\n  hint: dropout: drop probability: embedding, attention, residuals (default 0.2)",
		"gpt,dropout=nan":    "builtin:gpt: dropout=nan: want a number\n  hint: dropout: drop probability: embedding, attention, residuals (default 0.2)",
		"gpt,optimizer=adam": "builtin:gpt: optimizer=adam: want one of adamw, sgd, lion\n  hint: optimizer: optimizer (default adamw)",
		"gpt,heads=5":        "builtin:gpt: d=384 is no multiple of heads=5",
		"gpt,d=8,d=16":       "builtin:gpt: option \"d\" is given twice",
		"llama,kv_heads=3":   "builtin:llama: heads=8 is no multiple of kv_heads=3",
		"moe,top=9":          "builtin:moe: top=9 is more than experts=8",
		"cnn,size=10":        "builtin:cnn: size=10 is no multiple of 4, which two poolings need",
		"gpt,layers=2000":    "builtin:gpt: layers=2000: want at most 1024\n  hint: layers: blocks (default 6)",
		"gpt,micro=3":        "builtin:gpt: batch=16 is no multiple of micro=3",
	} {
		_, err := nn.ParseBuiltin(spec)
		require.EqualError(t, err, want, spec)
	}
	u, err := nn.ParseBuiltin("mlp,in=16000000,hidden=16000000,batch=1")
	require.NoError(t, err)
	_, err = u.Train()
	require.EqualError(t, err, "layer layers.0.fc: layers.0.fc.w: f32[16000000,16000000] is too large")
	_, err = nn.ParseBuiltin("gpt,layers")
	require.ErrorContains(t, err, `builtin:gpt: "layers" is no option: want key=value`)
}

func TestHelpNamesEveryOption(t *testing.T) {
	for _, b := range nn.Builtins() {
		help, err := b.Help()
		require.NoError(t, err)
		for _, o := range b.Options {
			require.Contains(t, help, "  "+o.Name+"="+o.Default+" ")
		}
	}
}

// GPT-2's published sizes give its published number of parameters.
func TestParameters(t *testing.T) {
	u, err := nn.ParseBuiltin("gpt2-124m,seq=1024")
	require.NoError(t, err)
	n, err := u.Parameters()
	require.NoError(t, err)
	require.Equal(t, int64(124439808), n)
	help, err := u.Builtin.Help()
	require.NoError(t, err)
	require.Contains(t, help, "; 123,702,528 parameters\n")
}

func TestCanonicalSpec(t *testing.T) {
	u, err := nn.ParseBuiltin("gpt,lr=0.001,dropout=0.0,layers=4,vocab=256")
	require.NoError(t, err)
	require.Equal(t, "gpt,layers=4,dropout=0", u.Spec)
	require.Equal(t, int64(384), u.Values.Int("d"))
	u, err = nn.ParseBuiltin("gpt,lr=3e-3")
	require.NoError(t, err)
	require.Equal(t, "gpt,lr=0.003,min_lr=0.0003", u.Spec, "the end of the schedule follows")
}
