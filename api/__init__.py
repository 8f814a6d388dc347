"""How people and trainers reach Kintsugi."""
