"""Published policies, each as its paper describes it; their constants stand in `constants`."""
