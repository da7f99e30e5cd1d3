package exe_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"reprise/runtime/exe"
	"reprise/runtime/internal/fixture"
)

func TestSmoke(t *testing.T) {
	k := fixture.Kernels(t)
	for _, m := range []*exe.Model{fixture.Train(), fixture.LM(""), fixture.Infer(), fixture.Control()} {
		if err := exe.Build(context.Background(), m, []string{k}, "/tmp/smoke_"+m.Name, false); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("/tmp/smoke_toy", "--json", "--steps", "5", "--profile")
	c.Stdout = os.Stdout
	c.Stderr = os.Stderr
	t.Log(c.Run())
}
