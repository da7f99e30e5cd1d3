package nn_test

import (
	"testing"

	"reprise/frontend/nn"
	"reprise/internal/diag"
)

// Whatever a person types, the answer is a model or a message; what a model calls itself
// means the same model.
func FuzzParseBuiltin(f *testing.F) {
	for _, spec := range tiny {
		f.Add(spec)
	}
	for _, spec := range []string{"", ",", "gpt,", "gpt,=", "gpt,layers", "gpt,layers=", "gpt,lr=1e400", "gpt,lr=-0", "mlp,layers=0x2", "gpt,dropout=.99999999"} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		u, err := nn.ParseBuiltin(spec)
		if err != nil {
			if e := diag.As(err); e.Code != "model" && e.Code != "option" {
				t.Fatalf("%q: code %q: %v", spec, e.Code, err)
			}
			return
		}
		again, err := nn.ParseBuiltin(u.Spec)
		if err != nil || again.Spec != u.Spec {
			t.Fatalf("%q is %q, which is %v: %v", spec, u.Spec, again, err)
		}
	})
}
