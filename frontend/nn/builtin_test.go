package nn_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend/nn"
	"reprise/ir"
	"reprise/ir/ops"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// tiny is each builtin model at a shape small enough to read and to interpret.
var tiny = []string{
	"mlp,layers=1,in=8,hidden=16,classes=4,batch=4,dropout=0.1",
	"gpt,layers=1,d=16,heads=2,seq=8,batch=2,vocab=16",
	"gpt2-124m,layers=1,d=16,heads=2,seq=8,batch=2,vocab=16",
	"llama,layers=1,d=16,heads=4,kv_heads=2,hidden=24,seq=8,batch=2,vocab=16",
	"moe,layers=1,d=16,heads=2,experts=4,hidden=16,seq=8,batch=2,vocab=16",
	"qwen,layers=1,d=16,heads=4,kv_heads=2,hidden=24,seq=8,batch=2,vocab=16",
	"llama4,layers=2,d=16,heads=4,kv_heads=2,hidden=24,experts=4,dense_hidden=24,nope_every=2,seq=8,batch=2,vocab=16",
	"mixtral,layers=1,d=16,heads=4,kv_heads=2,hidden=24,experts=4,seq=8,batch=2,vocab=16",
	"cnn,size=8,width=4,classes=4,batch=4",
	"resnet,size=8,width=4,blocks=1,classes=4,batch=4",
	"lstm,d=8,hidden=8,seq=4,batch=2,vocab=16",
}

// plain leaves the optimizer out of a golden file as far as possible; the optimizers
// have files of their own, with mlp.
const plain = ",optimizer=sgd,momentum=0,decay=0,clip=0,schedule=constant"

// golden maps file names to the modules that they hold.
func golden() map[string]string {
	all := map[string]string{
		"adamw": tiny[0],
		"lion":  tiny[0] + ",optimizer=lion,schedule=linear",
		"sgd":   tiny[0] + ",optimizer=sgd,schedule=constant",
		"micro": tiny[0] + plain + ",micro=2",
	}
	for _, spec := range tiny[1:] {
		name, _, _ := strings.Cut(spec, ",")
		all[name] = spec + plain
	}
	return all
}

func use(t *testing.T, spec string) *nn.Use {
	t.Helper()
	u, err := nn.ParseBuiltin(spec)
	require.NoError(t, err)
	return u
}

// The text of every builtin model, for training and inference, is as it was; it parses
// back to the same text.
func TestBuiltinGolden(t *testing.T) {
	for name, spec := range golden() {
		for _, kind := range []string{"train", "infer"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				u := use(t, spec)
				build := u.Train
				if kind == "infer" {
					build = u.Infer
				}
				m, err := build()
				require.NoError(t, err)
				require.NoError(t, ir.Verify(m))
				again, err := build()
				require.NoError(t, err)
				require.Equal(t, m.String(), again.String(), "building is a function")
				back, err := ir.Parse(ops.Table(), "golden", m.String())
				require.NoError(t, err)
				require.Equal(t, m.String(), back.String())

				file := filepath.Join("testdata", name+"."+kind+".ir")
				if *update {
					require.NoError(t, os.MkdirAll("testdata", 0o755))
					require.NoError(t, os.WriteFile(file, []byte(m.String()), 0o644))
				}
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, string(want), m.String(), "run with -update and read the diff")
			})
		}
	}
}
