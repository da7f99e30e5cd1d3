package compile_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/internal/compile"
)

// A state's new value that is returned in another shape is written over the old one, and nothing is copied.
func TestStateThroughReshape(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.ir")
	require.NoError(t, os.WriteFile(file, []byte(`module "m"

func @init(%key: key[] {role="key"}) -> (s) {
  %z = constant {value=dense(f32[64,32]: splat 0)} : f32[64,32] loc(state)
  return %z
}

func @step(%s: f32[64,32] {role="buffer"}, %x: f32[2048] {role="input"}) -> (s, y) {
  %r = reshape %s {shape=[2048]} : f32[2048] loc(state)
  %n = add %r, %x : f32[2048] loc(state)
  %o = reshape %n {shape=[64, 32]} : f32[64,32] loc(state)
  %y = mul %x, %x : f32[2048] loc(out)
  return %o, %y
}
`), 0o666))
	m, err := frontend.Load(file, frontend.Options{})
	require.NoError(t, err)
	x, _, err := compile.Launches(context.Background(), m, compile.Options{})
	require.NoError(t, err)
	require.Len(t, x.Step, 2, "a copy of the state")
	require.EqualValues(t, 3*8192+64, x.ArenaBytes) // and the key
}
