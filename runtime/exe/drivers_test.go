package exe_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/runtime/exe"
)

// TestDrivers: each kind is compiled once, whoever asks, again only after it failed, and Close leaves nothing.
func TestDrivers(t *testing.T) {
	tools, temp := t.TempDir(), t.TempDir()
	log, broken := filepath.Join(tools, "log"), filepath.Join(tools, "broken")
	script := "#!/bin/sh\n[ -e " + broken + " ] && exit 1\necho x >> " + log + "\n"
	for _, name := range []string{"clang-19", "ld.lld-19"} {
		require.NoError(t, os.WriteFile(filepath.Join(tools, name), []byte(script), 0o777))
	}
	require.NoError(t, os.WriteFile(broken, nil, 0o666))
	t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", temp)
	var d exe.Drivers
	ctx := context.Background()
	_, err := d.Get(ctx, false)
	require.Error(t, err)
	require.NoError(t, os.Remove(broken))

	var all [2][8]*exe.Driver
	var wg sync.WaitGroup
	for i := range all {
		for k := range all[i] {
			wg.Add(1)
			go func() {
				defer wg.Done()
				all[i][k], _ = d.Get(ctx, i == 1)
			}()
		}
	}
	wg.Wait()
	require.NotSame(t, all[0][0], all[1][0])
	for i := range all {
		for _, one := range all[i] {
			require.NotNil(t, one)
			require.Same(t, all[i][0], one)
		}
	}
	runs, err := os.Stat(log)
	require.NoError(t, err)
	_, err = d.Get(ctx, true)
	require.NoError(t, err)
	again, err := os.Stat(log)
	require.NoError(t, err)
	require.Equal(t, runs.Size(), again.Size(), "compiled again")
	require.NoError(t, d.Close())
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}
