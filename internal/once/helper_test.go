package once

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/codegen/cpu"
	"reprise/frontend"
	"reprise/internal/compile"
	"reprise/ir"
	"reprise/runtime"
	"reprise/runtime/exe"
)

// sweepSteps keeps the planner's search short: what is tested is the programs.
const sweepSteps = 500

// work is what the tests share: the driver and objects of equal kernels.
type work struct {
	dir     string
	driver  *exe.Driver
	objects cpu.Objects
}

var shared = sync.OnceValues(func() (*work, error) {
	dir, err := os.MkdirTemp("", "reprise-once-")
	if err != nil {
		return nil, err
	}
	w := &work{dir: dir}
	w.driver, err = exe.CompileDriver(context.Background(), dir, true)
	return w, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if w, err := shared(); err == nil {
		os.RemoveAll(w.dir)
	}
	os.Exit(code)
}

func load(t testing.TB, spec string, train bool) *frontend.Model {
	t.Helper()
	m, err := frontend.Load(spec, frontend.Options{Train: train})
	require.NoError(t, err)
	return m
}

// library compiles m to a shared library in a directory of the test.
func library(t testing.TB, m *frontend.Model, o compile.Options) (path string, p *compile.Program) {
	t.Helper()
	w, err := shared()
	require.NoError(t, err)
	o.NoMinimum, o.Shared, o.Driver, o.Objects, o.PlanSteps = true, true, w.driver, &w.objects, sweepSteps
	path = filepath.Join(t.TempDir(), "m.so")
	p, err = compile.Make(context.Background(), m, o, path)
	require.NoError(t, err)
	return path, p
}

// trace is everything that a run shows: the loss bits of each step and the state's hash.
type trace struct {
	loss  []string
	state string
}

func run(t testing.TB, lib string, m *frontend.Model, steps, threads int) trace {
	t.Helper()
	i, err := runtime.Load(lib, runtime.Options{Seed: 11, Threads: threads})
	require.NoError(t, err)
	defer i.Close()
	return steer(t, i, m, steps)
}

// steer runs steps on an instance, with inputs made from the step's number.
func steer(t testing.TB, i *runtime.Instance, m *frontend.Model, steps int) trace {
	t.Helper()
	var tr trace
	for s := range steps {
		for _, p := range m.Module.Func("step").Body.Params {
			if p.Role() == ir.RoleInput {
				x, err := compile.SyntheticInput(p, 5, s)
				require.NoError(t, err)
				require.NoError(t, i.Bind(p.Name, x.Data))
			}
		}
		require.NoError(t, i.Step())
		loss, err := i.Read("loss")
		require.NoError(t, err)
		tr.loss = append(tr.loss, fmt.Sprintf("%x", loss))
	}
	var err error
	tr.state, err = i.StateSHA256()
	require.NoError(t, err)
	return tr
}
